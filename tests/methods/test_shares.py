"""Compressed all-reduce by shares: all ranks end equal, nothing is lost for good, bytes match the formula."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.processes import run

from sandtable.methods.data import QSGD, AllReduce, Compression, Sign, VectorSpec
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

_ELEMENTS = 1003
_TURNS = 5
_COMPRESSIONS = (Sign(), QSGD(bits=2), QSGD(bits=8))


def _drawn(rank: int, turn: int) -> torch.Tensor:
    return torch.randn(_ELEMENTS, generator=torch.Generator().manual_seed(100 * turn + rank))


def _mix(compression: Compression) -> dict[str, Any]:
    wire = Wire()
    vector = Vector([torch.zeros(_ELEMENTS)])
    spec = VectorSpec.of(vector, compression, seed=0)
    mixer = AllReduce().mixer(wire, spec)
    total = torch.zeros(_ELEMENTS)
    results = []
    for turn in range(_TURNS):
        vector.data.copy_(_drawn(wire.rank, turn))
        if turn == _TURNS - 1:
            saved = mixer.state_dict()
            other = AllReduce().mixer(wire, spec)
            other.load_state_dict(saved)
            again = Vector([torch.zeros(_ELEMENTS)])
            again.data.copy_(vector.data)
            other.mix(again, turn=turn)
        mixer.mix(vector, turn=turn)
        results.append(vector.data.clone())
        total += vector.data
    counters = wire.counters
    state = mixer.state_dict()
    return {
        "results": results,
        "resumed": again.data,
        "total": total,
        "unsent": torch.cat([part["residual"] for part in state["out"]]),
        "unsaid": state["mean"]["residual"],
        "sent_bytes": counters.sent_bytes / (_TURNS + 1),
        "messages": counters.messages / (_TURNS + 1),
        "cost": AllReduce().cost(dist.get_world_size(), spec),
    }


@pytest.mark.parametrize("compression", _COMPRESSIONS, ids=str)
def test_all_have_the_same_and_what_is_not_sent_waits(compression):
    world = 4
    ranks = run(world, _mix, compression)
    means = [torch.stack([_drawn(rank, turn) for rank in range(world)]).mean(0) for turn in range(_TURNS)]
    # What was sent, what each rank has yet to tell, and what the accountants have yet to say, are all there ever was.
    unsent = torch.stack([found["unsent"] for found in ranks]).mean(0)
    unsaid = torch.cat([found["unsaid"] for found in ranks])
    torch.testing.assert_close(ranks[0]["total"] + unsent + unsaid, sum(means), rtol=1e-4, atol=1e-4)
    for found in ranks:
        for result, first in zip(found["results"], ranks[0]["results"], strict=True):
            assert torch.equal(result, first)
        assert torch.equal(found["resumed"], found["results"][-1])
        assert found["messages"] == found["cost"].messages == 2 * (world - 1)
    # A message carries its length in 8 bytes.
    mean_bytes = sum(found["sent_bytes"] for found in ranks) / world
    assert mean_bytes == pytest.approx(ranks[0]["cost"].sent_bytes + 8 * 2 * (world - 1), rel=0.01)
