"""Local SGD: the mean of weights now and then."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.lossy import LargestHalf
from tests.methods.processes import run
from tests.methods.training import batches, flat_weights, make_model, sgd, step_through, train
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.data import (
    AllReduce,
    BulkSynchronous,
    DiLoCo,
    Gossip,
    Hierarchical,
    LocalSGD,
    Nesterov,
    PostLocalSGD,
    SlowMo,
)

_WAYS: dict[str, dict[str, Any]] = {
    "bulk": {"sync": BulkSynchronous()},
    "local 1": {"sync": LocalSGD(1)},
    "jump": {"sync": LocalSGD(1, outer=Nesterov(lr=1.0, momentum=0.0))},
    "slowmo": {"sync": LocalSGD(2, outer=SlowMo(lr=1.0, momentum=0.0))},
    "local 2": {"sync": LocalSGD(2)},
    "before": {"sync": LocalSGD(2, average="before")},
    "diloco": {"sync": DiLoCo(period=2)},
    "streamed": {"sync": LocalSGD(4, parts=2)},
    "post": {"sync": PostLocalSGD(switch_at=3, period=2)},
    "compressed": {"sync": LocalSGD(2), "compression": LargestHalf()},
}


def _train_in_several_ways() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, settings in _WAYS.items():
        model, parallel = train(4, **settings)
        found[name] = flat_weights(model)
        found[f"{name} messages"] = parallel.wire.counters.messages
        parallel.close()
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run(2, _train_in_several_ways)


def test_period_one_equals_bulk_for_plain_sgd(ranks):
    for found in ranks:
        torch.testing.assert_close(found["local 1"], found["bulk"], rtol=1e-5, atol=1e-6)


def test_an_outer_optimizer_that_takes_the_whole_step_is_plain_averaging(ranks):
    for found in ranks:
        torch.testing.assert_close(found["jump"], found["bulk"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found["slowmo"], found["local 2"], rtol=1e-5, atol=1e-6)


def test_local_sgd_is_the_algorithm_written_down(ranks):
    for name, order in (("local 2", "after"), ("before", "before")):
        for found, expected in zip(ranks, _by_hand(2, 4, order), strict=True):
            torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)


def test_replicas_agree_after_an_averaging_step_and_only_then(ranks):
    for name in ("local 2", "diloco", "compressed", "local 1"):
        assert torch.equal(ranks[0][name], ranks[1][name]), name
    for name in ("before", "streamed"):
        assert not torch.equal(ranks[0][name], ranks[1][name]), name


def test_the_outer_step_is_nesterovs(ranks):
    model = make_model()
    start = slow = flat_weights(model)
    velocity = torch.zeros_like(start)
    for first in (0, 2):
        ends = [_local_steps(slow, rank, first) for rank in range(2)]
        moved = slow - (ends[0] + ends[1]) / 2
        velocity = 0.9 * velocity + moved
        slow = slow - 0.7 * (moved + 0.9 * velocity)
    torch.testing.assert_close(ranks[0]["diloco"], slow, rtol=1e-5, atol=1e-6)


def test_seldom_means_few_messages(ranks):
    found = ranks[0]
    assert found["local 2 messages"] == found["bulk messages"] // 2
    # Three bulk steps; then two local ones would be needed for an average, but only one is left.
    assert found["post messages"] == 3 * found["bulk messages"] // 4


def test_period_from_the_bound():
    assert LocalSGD.period_for(16**4 * 8**3, 8) == 16
    assert LocalSGD.period_for(16**4 * 8**3 - 1, 8) == 15
    assert LocalSGD.period_for(10, 64) == 1


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: LocalSGD(0), "period must be 1 or more"),
        (lambda: LocalSGD(2.5), "a whole number of steps"),  # type: ignore[arg-type]
        (lambda: LocalSGD(2, outer="Nesterov"), "outer must be"),  # type: ignore[arg-type]
        (lambda: LocalSGD(2, average="now"), "after"),
        (lambda: LocalSGD(2, average="before", outer=Nesterov()), "moves weights after the step"),
        (lambda: LocalSGD(2, parts=3), "at most the period"),
        (lambda: Nesterov(momentum=1.0), "momentum must be"),
        (lambda: PostLocalSGD(-1, 2), "switch_at must be"),
        (lambda: AllReduce("tree"), "algorithm must be"),
        (lambda: Hierarchical(nodes=2, inner="ring"), "inner must be an Exchange"),  # type: ignore[arg-type]
        (lambda: Gossip([[0.5, 0.5], [0.2, 0.8]]), "doubly stochastic"),
    ],
)
def test_impossible_settings_are_refused_where_they_are_made(make, rule):
    with pytest.raises(MethodError, match=rule):
        make()


def _by_hand(period: int, num_steps: int, order: str) -> list[torch.Tensor]:
    """Run algorithm 1 with plain loops, in one process."""
    models = [make_model(), make_model()]
    for step, ranks in enumerate(batches(num_steps, 2), start=1):
        gradients = []
        for model, (inputs, targets) in zip(models, ranks, strict=True):
            loss = F.cross_entropy(model(inputs), targets)
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        if order == "before" and step % period == 0:
            _average(models)
        for model, gradient in zip(models, gradients, strict=True):
            with torch.no_grad():
                for parameter, part in zip(model.parameters(), gradient, strict=True):
                    parameter.sub_(part, alpha=0.1)
        if order == "after" and step % period == 0:
            _average(models)
    return [flat_weights(model) for model in models]


@torch.no_grad()
def _average(models: list[torch.nn.Module]) -> None:
    for same in zip(*(model.parameters() for model in models), strict=True):
        mean = sum(same) / len(same)
        for parameter in same:
            parameter.copy_(mean)


def _local_steps(start: torch.Tensor, rank: int, first: int) -> torch.Tensor:
    model = make_model()
    torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
    optimizer = sgd(model)
    for ranks in batches(2, 2, first=first):
        inputs, targets = ranks[rank]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return flat_weights(model)


def test_no_group_is_refused_with_the_remedy():
    assert not dist.is_initialized()
    with pytest.raises(MethodError, match="init_process_group"):
        train(0)


_BESIDE: dict[str, dict[str, Any]] = {
    "all-reduce": {"sync": LocalSGD(1, average="before")},
    "every second": {"sync": LocalSGD(2, average="before")},
    "in parts": {"sync": LocalSGD(4, average="before", parts=2)},
    "gossip": {"sync": LocalSGD(1, average="before"), "exchange": Gossip()},
    "hierarchical": {"sync": LocalSGD(2, average="before"), "exchange": Hierarchical(nodes=2)},
}


def _train_beside_the_passes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, settings in _BESIDE.items():
        for overlap in (True, False):
            model, parallel = train(5, overlap=overlap, **settings)
            counters = parallel.wire.counters
            found[f"{name} {overlap}"] = flat_weights(model), counters.sent_bytes, counters.messages
            parallel.close()
    return found


def test_weights_that_go_beside_the_passes_end_as_those_that_wait():
    for found in run(4, _train_beside_the_passes):
        for name in _BESIDE:
            (weights, *sent), (expected, *expected_sent) = found[f"{name} True"], found[f"{name} False"]
            assert torch.equal(weights, expected), name
            assert sent == expected_sent, name


def _interrupted() -> dict[str, Any]:
    """Save a checkpoint and synchronise between the forward pass and the step."""
    found: dict[str, Any] = {"under way": []}
    for overlap in (True, False):
        model, parallel = train(2, sync=LocalSGD(1, average="before"), overlap=overlap)
        (inputs, targets), *_ = [ranks[dist.get_rank()] for ranks in batches(1, 2, first=2)]
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(inputs)
        with torch.no_grad():
            model(inputs)
        found["under way"].append(len(parallel._driver._under_way))  # type: ignore[attr-defined]
        losses = [F.cross_entropy(model(inputs), targets) for _ in range(2)]
        saved = copy.deepcopy((model.state_dict(), parallel.state_dict()))
        losses[1].backward()
        parallel.synchronize()
        parallel.step()
        found[f"synchronised {overlap}"] = flat_weights(model)
        model.load_state_dict(saved[0])
        parallel.load_state_dict(saved[1])
        step_through(model, parallel, 2, first=2)
        found[f"resumed {overlap}"] = flat_weights(model)
        parallel.close()
        model(inputs)
        found["under way"].append(len(parallel._driver._under_way))  # type: ignore[attr-defined]
    found["straight"] = flat_weights(train(4, sync=LocalSGD(1, average="before"))[0])
    return found


def test_what_is_under_way_is_given_up_when_weights_change():
    for found in run(2, _interrupted):
        assert torch.equal(found["resumed True"], found["straight"])
        assert torch.equal(found["resumed False"], found["straight"])
        assert torch.equal(found["synchronised True"], found["synchronised False"])
        assert found["under way"] == [0, 0, 0, 0]
