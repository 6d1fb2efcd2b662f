"""All-reduce in 16 bits: nearly the mean on every rank, rounding errors wait in the residual, half of the bytes."""

from typing import Any

import pytest
import torch
from tests.methods.processes import run

from sandtable.methods.data import AllReduce, Half, VectorSpec
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

_ELEMENTS = 1003
_TURNS = 50
_WORLD = 4


def _drawn(rank: int, turn: int) -> torch.Tensor:
    values = torch.randn(_ELEMENTS, generator=torch.Generator().manual_seed(100 * turn + rank))
    # Some so small that a quarter of them is nothing in float16.
    values[:500] *= 1e-7
    return values


def _mix(compression: Half, algorithm: str) -> dict[str, Any]:
    wire = Wire()
    parameter = torch.zeros(_ELEMENTS, requires_grad=True)
    vector = Vector([parameter], flags=True)
    spec = VectorSpec.of(vector, compression, seed=0)
    exchange = AllReduce(algorithm)
    mixer = exchange.mixer(wire, spec)
    total = torch.zeros(_ELEMENTS, dtype=torch.float64)
    results = []
    for turn in range(_TURNS):
        if turn == _TURNS - 1:
            other = exchange.mixer(wire, spec)
            other.load_state_dict(mixer.state_dict())
            again = Vector([parameter], flags=True)
            again.data.copy_(_drawn(wire.rank, turn))
            other.mix(again, turn=turn)
        vector.data.copy_(_drawn(wire.rank, turn))
        vector.flags.fill_(wire.rank == 2)
        mixer.mix(vector, turn=turn)
        results.append(vector.data.clone())
        total += vector.data
    return {
        "results": results,
        "resumed": again.data,
        "total": total,
        "flags": vector.flags.clone(),
        "sent_bytes": wire.counters.sent_bytes / (_TURNS + 1),
        "messages": wire.counters.messages / (_TURNS + 1),
        "cost": exchange.cost(_WORLD, spec),
    }


@pytest.mark.parametrize("algorithm", ["native", "ring"])
def test_everybody_has_nearly_the_mean(algorithm):
    ranks = run(_WORLD, _mix, Half(), algorithm)
    mean = torch.stack([_drawn(rank, 0) for rank in range(_WORLD)]).mean(0)
    torch.testing.assert_close(ranks[0]["results"][0], mean, rtol=2e-3, atol=2e-3)
    for found in ranks:
        for result, first in zip(found["results"], ranks[0]["results"], strict=True):
            assert torch.equal(result, first)
        assert torch.equal(found["resumed"], found["results"][-1])
        assert found["flags"].item() == 1
        assert found["messages"] == found["cost"].messages == 2 * (_WORLD - 1)
    mean_bytes = sum(found["sent_bytes"] for found in ranks) / _WORLD
    assert mean_bytes == pytest.approx(ranks[0]["cost"].sent_bytes, rel=0.01)
    assert ranks[0]["cost"].sent_bytes == 2 * 3 / 4 * 2 * (_ELEMENTS + 1)


@pytest.mark.parametrize("feedback", [True, False])
def test_what_is_too_small_to_be_sent_waits_until_it_is_not(feedback):
    found = run(_WORLD, _mix, Half(error_feedback=feedback), "native")[0]
    expected = sum(_drawn(rank, turn).double() for rank in range(_WORLD) for turn in range(_TURNS)) / _WORLD
    worst = (found["total"] - expected)[:500].abs().max().item()
    # A rank holds back half of the smallest number at most, and what it holds back does not grow.
    assert (worst < _WORLD * 2**-25 * 1.01) == feedback


def test_bfloat16_is_summed_too():
    found = run(_WORLD, _mix, Half("bfloat16"), "native")[0]
    mean = torch.stack([_drawn(rank, 0) for rank in range(_WORLD)]).mean(0)
    torch.testing.assert_close(found["results"][0], mean, rtol=2e-2, atol=2e-2)
