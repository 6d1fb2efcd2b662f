"""DataParallel with a parameter server: shards beside the workers, and the same loop as always."""

import itertools
import warnings
from typing import Any

import pytest
import torch
from tests.methods.processes import run
from tests.methods.training import batches, flat_weights, make_model, step_through, train, train_alone
from torch import nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.data import (
    QSGD,
    AllReduce,
    BulkSynchronous,
    DataParallel,
    Gossip,
    LocalSGD,
    PowerSGD,
    TopK,
    check_combination,
)
from sandtable.methods.server import Asynchronous, ParameterServer, StaleSynchronous

_WORLD = 3


def _two_groups(model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    groups = [{"params": parameters[:3], "lr": 0.1}, {"params": parameters[3:], "lr": 0.02, "weight_decay": 0.01}]
    return torch.optim.SGD(groups, momentum=0.9)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


_OPTIMIZERS = {"two groups": _two_groups, "adam": _adam}


def _bulk(shards: int) -> dict[str, torch.Tensor]:
    found = {}
    for name, optimizer in _OPTIMIZERS.items():
        model, parallel = train(optimizer=optimizer, exchange=ParameterServer(shards=shards, timeout_s=30))
        parallel.close()
        found[name] = flat_weights(model)
    return found


@pytest.mark.parametrize("shards", [1, 3])
def test_bulk_equals_one_process_on_the_joined_batch(shards):
    ranks = run(_WORLD, _bulk, shards)
    for name, optimizer in _OPTIMIZERS.items():
        alone = train_alone(_WORLD, optimizer=optimizer)
        for found in ranks:
            torch.testing.assert_close(found[name], alone, rtol=1e-5, atol=1e-6)
            assert torch.equal(found[name], ranks[0][name])


def _scheduled() -> tuple[torch.Tensor, list[str]]:
    """Train with a rate that falls and returns to exactly its first value."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = DataParallel(model, optimizer, exchange=ParameterServer(timeout_s=30))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.25 if step in (1, 2) else 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            step_through(model, parallel, 1, first=step)
            schedule.step()
    parallel.close()
    return flat_weights(model), [str(warning.message) for warning in caught]


def test_servers_follow_the_scheduler_down_and_back():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, ranks in enumerate(batches(5, 2)):
        inputs, targets = (torch.cat(parts) for parts in zip(*ranks, strict=True))
        optimizer.param_groups[0]["lr"] = 0.025 if step in (1, 2) else 0.1
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    for weights, caught in run(2, _scheduled):
        torch.testing.assert_close(weights, flat_weights(model), rtol=1e-5, atol=1e-6)
        assert caught == []


def _measured(sync: Any, compression: Any) -> dict[str, Any]:
    model, parallel = train(40, sync=sync, exchange=ParameterServer(shards=2, timeout_s=30), compression=compression)
    explained = parallel.explain(bandwidth=1e6, latency=1e-3)
    epoch = parallel.record.end_epoch(disagreement=False)
    parallel.synchronize()
    parallel.close()
    return {"weights": flat_weights(model), "epoch": epoch, "explained": explained, "loss": _loss(model)}


def _loss(model: nn.Module) -> float:
    """Compute the loss on everything the workers have seen."""
    inputs, targets = (torch.cat(parts) for parts in zip(*itertools.chain(*batches(40, _WORLD)), strict=True))
    return F.cross_entropy(model(inputs), targets).item()


@pytest.mark.parametrize(
    ("sync", "compression"),
    [(Asynchronous(), None), (Asynchronous(), TopK(0.25)), (StaleSynchronous(2), None), (StaleSynchronous(0), QSGD(4))],
    ids=str,
)
def test_workers_at_their_own_pace_learn_and_are_measured(sync, compression):
    ranks = run(_WORLD, _measured, sync, compression)
    for found in ranks:
        epoch, explained = found["epoch"], found["explained"]
        assert torch.equal(found["weights"], ranks[0]["weights"])
        assert found["loss"] < _loss(make_model())
        assert epoch.steps == 40
        assert epoch.messages == 40 * explained.messages == 80
        # Headers come on top of the formula.
        assert explained.sent_bytes * 40 < epoch.sent_bytes < explained.sent_bytes * 40 + 80 * 400
        assert 0 < epoch.communication_s <= epoch.synchronisation_s <= epoch.seconds
        assert explained.communication_s == pytest.approx(
            _WORLD * max(explained.sent_bytes, 4 * len(found["weights"])) / 2 / 1e6 + 2e-3
        )


def _resume(compression: Any) -> tuple[torch.Tensor, torch.Tensor]:
    settings: dict[str, Any] = {"exchange": ParameterServer(shards=2, timeout_s=30), "compression": compression}
    model, first = train(4, optimizer=_two_groups, **settings)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    state = first.state_dict()
    step_through(model, first, 4, first=4)
    first.close()
    other = make_model()
    second = DataParallel(other, _two_groups(other), **settings)
    other.load_state_dict(saved)
    second.load_state_dict(state)
    step_through(other, second, 4, first=4)
    second.close()
    return flat_weights(model), flat_weights(other)


@pytest.mark.parametrize("compression", [None, TopK(0.25)], ids=str)
def test_resume_equals_no_interruption(compression):
    for uninterrupted, resumed in run(2, _resume, compression):
        assert torch.equal(uninterrupted, resumed)


@pytest.mark.parametrize(
    ("sync", "exchange", "compression", "message"),
    [
        (Asynchronous(), AllReduce(), TopK(0.1), "try exchange=ParameterServer"),
        (StaleSynchronous(2), Gossip(), TopK(0.1), "try exchange=ParameterServer"),
        (LocalSGD(4), ParameterServer(), TopK(0.1), "sync must be"),
        (BulkSynchronous(), ParameterServer(), PowerSGD(2), "try TopK"),
        (BulkSynchronous(), ParameterServer(shards=3), TopK(0.1), "use fewer"),
        (BulkSynchronous(), ParameterServer(servers=(7,)), TopK(0.1), "ranks of the group"),
    ],
)
def test_impossible_combinations_are_refused_with_a_remedy(sync, exchange, compression, message):
    with pytest.raises(MethodError, match=message):
        check_combination(sync, exchange, compression, num_ranks=2)
