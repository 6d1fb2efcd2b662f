"""Shards of ZeRO-3 in one operator: the result is DeepSpeed's."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandtable.vgpu.packages import deepspeed_shards

RANKS = 4
SIZES = ((8,), (3, 4), (5,), (1,), (2, 3, 7))
"""Of the tensors: shards of all, of some, and of one rank are complete."""


@pytest.fixture(scope="module", autouse=True)
def operators():
    library = torch.library.Library("deepspeed", "FRAGMENT")
    for schema in deepspeed_shards.SCHEMAS:
        library.define(schema)
    deepspeed_shards.define_kernels(library)
    yield
    library._destroy()


@pytest.fixture
def reducing(monkeypatch):
    """DeepSpeed's module with the collective taken out."""
    module = pytest.importorskip("deepspeed.runtime.comm.coalesced_collectives")
    monkeypatch.setattr(module, "reduce_scatter_coalesced", module.reduce_scatter_coalesced)
    monkeypatch.setattr(module, "_torch_reduce_scatter_fn", lambda whole, shard, group: None)
    return module


def each_rank(function: Callable[..., Any], module: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[list[float]]]:
    results = []
    for rank in range(RANKS):
        position = SimpleNamespace(get_rank=lambda group, rank=rank: rank, get_world_size=lambda group: RANKS)
        monkeypatch.setattr(module, "dist", position)
        tensors = [torch.arange(torch.Size(shape).numel()).view(shape) + 100.0 * k for k, shape in enumerate(SIZES)]
        results.append([piece.tolist() for piece in function(tensors)])
    return results


def test_every_rank_gets_the_shards_that_deepspeed_gives_it(reducing, monkeypatch):
    theirs = each_rank(reducing.reduce_scatter_coalesced, reducing, monkeypatch)
    deepspeed_shards.adapt_reducing(reducing)
    assert each_rank(reducing.reduce_scatter_coalesced, reducing, monkeypatch) == theirs


def test_a_parameter_is_whole_when_its_shards_are_joined():
    """Two parameters of 5 and 10 elements over 4 ranks: shards of 2 and 3."""
    first, second = torch.arange(5.0), torch.arange(10.0) + 100
    gathered = torch.ops.deepspeed.interleave_shards([first, second], RANKS)
    assert gathered.numel() == RANKS * (2 + 3)
    shards = gathered.as_strided((4, 3), (5, 1), 2)
    assert torch.ops.deepspeed.join_shards(shards, 10).tolist() == second.tolist()


def test_shapes_are_those_of_the_values():
    tensors = [torch.empty(shape, device="meta") for shape in SIZES]
    interleaved = torch.ops.deepspeed.interleave_shards(tensors, RANKS)
    assert interleaved.numel() == RANKS * sum(-(-torch.Size(shape).numel() // RANKS) for shape in SIZES)
    assert torch.ops.deepspeed.join_shards(interleaved.view(RANKS, -1)[:, :2], 7).shape == (7,)
