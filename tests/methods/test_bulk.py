"""Bulk-synchronous training over all-reduce equals one process on the joined batch."""

from typing import Any

import torch
import torch.distributed as dist
from tests.methods.processes import run
from tests.methods.training import flat_weights, train, train_alone
from torch import nn

from sandtable.methods.data import AllReduce

_ELEMENTS = 6 * 16 + 16 + 16 * 8 + 8 + 8 * 3 + 3


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


_OPTIMIZERS = {"momentum": _momentum, "adam": _adam}


def _train_in_several_ways() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, optimizer in _OPTIMIZERS.items():
        for algorithm in ("native", "ring"):
            model, parallel = train(optimizer=optimizer, exchange=AllReduce(algorithm), overlap=False)
            found[f"{name} {algorithm}"] = flat_weights(model)
            counters = parallel.wire.counters
            found[f"{algorithm} counted"] = (counters.sent_bytes, counters.messages)
        model, _ = train(optimizer=optimizer, bucket_bytes=400)
        found[f"{name} overlapped"] = flat_weights(model)
    return found


def test_bulk_equals_one_process_on_the_joined_batch():
    ranks = run(3, _train_in_several_ways)
    for name, optimizer in _OPTIMIZERS.items():
        alone = train_alone(3, optimizer=optimizer)
        for way in ("native", "ring", "overlapped"):
            for found in ranks:
                torch.testing.assert_close(found[f"{name} {way}"], alone, rtol=1e-5, atol=1e-6)
            assert all(torch.equal(found[f"{name} {way}"], ranks[0][f"{name} {way}"]) for found in ranks)
    # 5 steps of 2(N-1) messages with 2(N-1)/N of the vector and of its six flags.
    vector_bytes = 4 * (_ELEMENTS + 6)
    for found in ranks:
        sent, messages = found["ring counted"]
        assert messages == found["native counted"][1] == 5 * 4
        assert abs(sent - 5 * 4 * vector_bytes / 3) <= 5 * 4 * 4
        assert abs(found["native counted"][0] - 5 * 4 * vector_bytes / 3) <= 5


def _unequal_start() -> torch.Tensor:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(3, 2)
    train(0, model=model)
    return flat_weights(model)


def test_replicas_start_as_rank_zero():
    first, second = run(2, _unequal_start)
    assert torch.equal(first, second)
