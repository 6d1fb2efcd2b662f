"""The gates: values forward, gradients backward, and traffic."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tests.methods.processes import run
from torch import Tensor

from sandtable.methods.tensor import TensorGroup, operators

_GATES: dict[str, Callable[..., Tensor]] = {
    "copy": operators.copy,
    "reduce": operators.reduce,
    "gather": partial(operators.gather, dim=1),
    "scatter": partial(operators.scatter, dim=1),
    "split": partial(operators.split, dim=1),
    "join": partial(operators.join, dim=1),
}
_ROWS, _COLUMNS = 3, 4


def _tensor(rank: int, columns: int, *, seed: int) -> Tensor:
    return torch.randn(_ROWS, columns, generator=torch.Generator().manual_seed(10 * seed + rank))


def _columns(name: str, world: int) -> tuple[int, int]:
    """Return the columns in and out."""
    return {
        "gather": (_COLUMNS, _COLUMNS * world),
        "join": (_COLUMNS, _COLUMNS * world),
        "scatter": (_COLUMNS, _COLUMNS // world),
        "split": (_COLUMNS, _COLUMNS // world),
    }.get(name, (_COLUMNS, _COLUMNS))


def _pass_all() -> dict[str, Any]:
    group = TensorGroup()
    found: dict[str, Any] = {}
    for name, gate in _GATES.items():
        columns_in, columns_out = _columns(name, group.size)
        inputs = _tensor(dist.get_rank(), columns_in, seed=1).requires_grad_()
        before = inputs.detach().clone()
        group.traffic.reset()
        outputs = gate(inputs, group)
        forward = dict(group.traffic.calls), dict(group.traffic.sent_bytes)
        group.traffic.reset()
        outputs.backward(_tensor(dist.get_rank(), columns_out, seed=2))
        backward = dict(group.traffic.calls), dict(group.traffic.sent_bytes)
        assert torch.equal(inputs, before)
        found[name] = (outputs.detach(), inputs.grad, forward, backward)
    return found


def test_every_gate_moves_what_its_conjugate_moves_back():
    world = 2
    results = run(world, _pass_all)

    def expect(move: str, tensors: list[Tensor], rank: int) -> Tensor:
        whole = torch.cat(tensors, dim=1)
        total = torch.stack(tensors).sum(dim=0)
        return {
            "same": tensors[rank],
            "sum": total,
            "all": whole,
            "share of sum": total.chunk(world, dim=1)[rank],
            "share": tensors[rank].chunk(world, dim=1)[rank],
        }[move]

    moves = {
        "copy": ("same", "sum"),
        "reduce": ("sum", "same"),
        "gather": ("all", "share of sum"),
        "scatter": ("share of sum", "all"),
        "split": ("share", "all"),
        "join": ("all", "share"),
    }
    for rank, found in enumerate(results):
        for name, (forth, back) in moves.items():
            columns_in, columns_out = _columns(name, world)
            inputs = [_tensor(each, columns_in, seed=1) for each in range(world)]
            gradients = [_tensor(each, columns_out, seed=2) for each in range(world)]
            outputs, gradient, *_ = found[name]
            torch.testing.assert_close(outputs, expect(forth, inputs, rank), msg=f"{name} forward")
            torch.testing.assert_close(gradient, expect(back, gradients, rank), msg=f"{name} backward")


def test_collectives_and_ring_bytes_are_counted():
    (found, _) = run(2, _pass_all)
    whole = 4 * _ROWS * _COLUMNS
    all_reduce = ({"all-reduce": 1}, {"all-reduce": whole})  # 2 (N - 1) / N of the buffer
    nothing: tuple[dict[str, int], dict[str, int]] = ({}, {})
    counted = {name: each[2:] for name, each in found.items()}
    assert counted["copy"] == (nothing, all_reduce)
    assert counted["reduce"] == (all_reduce, nothing)
    assert counted["gather"] == (
        ({"all-gather": 1}, {"all-gather": whole}),
        ({"reduce-scatter": 1}, {"reduce-scatter": whole}),
    )
    half = whole // 2  # the share of one rank
    assert counted["scatter"] == (
        ({"reduce-scatter": 1}, {"reduce-scatter": half}),
        ({"all-gather": 1}, {"all-gather": half}),
    )
    assert counted["split"] == (nothing, ({"all-gather": 1}, {"all-gather": half}))
    assert counted["join"] == (({"all-gather": 1}, {"all-gather": whole}), nothing)
