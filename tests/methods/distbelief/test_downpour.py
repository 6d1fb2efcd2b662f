"""Downpour SGD: what a replica sends and takes and when, and what happens when some of them die."""

import pytest
import torch
from tests.methods.distbelief.downpour_tasks import (
    RATE,
    make_adagrad,
    make_classifier,
    make_sgd,
    make_slow_sgd,
    run_cooling_replica,
    run_interrupted_replica,
    run_learner,
    run_replica,
    run_server,
)
from tests.methods.server_job import Job, job
from tests.methods.server_tasks import loss_of, make_model, settings, weights_of

from sandtable.errors import MethodError
from sandtable.methods.server import Downpour, ParameterServer

WAIT = {"overlap": False}


def train_alone(steps: int) -> list[torch.Tensor]:
    model = make_model()
    optimizer, weights = torch.optim.SGD(model.parameters(), lr=RATE), [weights_of(model)]
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        weights.append(weights_of(model))
    return weights


@pytest.mark.parametrize(("n_fetch", "n_push"), [(1, 1), (3, 3), (6, 2), (2, 1)])
def test_one_replica_with_the_servers_rate_is_plain_sgd(n_fetch, n_push):
    """Local steps and the sum of their gradients come to the same, so fetching changes nothing but rounding."""
    exchange, steps = settings(2), 12
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 1) for shard in range(2)]
        result = running.start(run_replica, 0, exchange, steps, {"n_fetch": n_fetch, "n_push": n_push, **WAIT}).result()
        reports = [server.result() for server in servers]
    for found, expected in zip(result["weights"], train_alone(steps), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    counters = result["counters"]
    assert counters.num_steps == steps
    assert counters.num_pushes == (steps // n_push,) * 2
    assert counters.num_fetches == (steps // n_fetch,) * 2
    assert [report.updates for report in reports] == [steps // n_push] * 2


def test_rates_that_a_scheduler_changes_reach_the_servers():
    exchange, rates = settings(2), [RATE, RATE / 2, RATE / 10, 0.0]
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 1) for shard in range(2)]
        weights = running.start(run_cooling_replica, exchange, rates).result()
        assert [server.result().updates for server in servers] == [4, 4]
    model = make_model()
    for rate in rates:
        model.zero_grad()
        loss_of(model).backward()
        torch.optim.SGD(model.parameters(), lr=rate).step()
    torch.testing.assert_close(weights, weights_of(model), rtol=0, atol=1e-6)


def test_gradients_that_were_not_pushed_yet_are_lost_from_the_replica_when_it_fetches():
    """As in the paper: what is fetched replaces the weights; unpushed gradients arrive with the next push."""
    exchange = settings(1)
    with job() as running:
        server = running.start(run_server, 0, exchange, 1)
        result = running.start(run_replica, 0, exchange, 5, {"n_fetch": 1, "n_push": 4, **WAIT}).result()
        report = server.result()
    weights = result["weights"]
    # Nothing is on the server before the fourth step: each fetch brings back the beginning.
    assert all(torch.equal(later, weights[0]) for later in weights[1:4])
    model = make_model()
    loss_of(model).backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(weights[4], weights[0] - 4 * RATE * gradient, rtol=0, atol=1e-6)
    # The fifth gradient is pushed when the replica is done.
    assert report.updates == 2
    assert result["counters"].num_pushes == (1,)
    assert result["after"].num_pushes == (2,)


def test_a_slow_shard_holds_up_neither_the_replica_nor_the_other_shard():
    exchange, steps = settings(2), 40
    with job() as running:
        fast = running.start(run_server, 0, exchange, 1)
        slow = running.start(run_server, 1, exchange, 1, make_slow_sgd)
        result = running.start(run_replica, 0, exchange, steps, {}, 0.01).result()
        updates = fast.result().updates, slow.result().updates
    # With a barrier over the shards it would be 40 x 0.1 s or more.
    assert result["seconds"] < 3.0
    fast_pushes, slow_pushes = result["counters"].num_pushes
    assert fast_pushes > 2 * slow_pushes
    # Something was always under way to the slow one, and nobody stood still for it.
    assert result["counters"].communication_s > 0.5 * result["seconds"]
    assert result["counters"].waiting_s < 0.1 * result["seconds"]
    # Nothing was lost on the way: what the slow shard did not take at once came in larger sums.
    assert updates == result["after"].num_pushes
    assert (result["weights"][-1] - result["weights"][0]).abs().max() > 0.01


def test_others_begin_when_the_first_replica_has_warmed_up():
    exchange = settings(2)
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 2) for shard in range(2)]
        options = {"warm_start_steps": 6, **WAIT}
        other = running.start(run_replica, 1, exchange, 1, options)
        running.start(run_replica, 0, exchange, 6, options).result()
        result = other.result()
        assert [server.result().updates for server in servers] == [7, 7]
    torch.testing.assert_close(result["weights"][0], train_alone(6)[-1], rtol=0, atol=1e-6)


def test_warming_up_may_take_longer_than_the_timeout():
    exchange = settings(1, timeout_s=2.0)
    with job() as running:
        server = running.start(run_server, 0, exchange, 2)
        options = {"warm_start_steps": 6, **WAIT}
        other = running.start(run_replica, 1, exchange, 1, options)
        running.start(run_replica, 0, exchange, 6, options, 0.6).result()
        result = other.result()
        server.result()
    torch.testing.assert_close(result["weights"][0], train_alone(6)[-1], rtol=0, atol=1e-6)


def test_if_the_first_replica_dies_while_warming_up_the_others_begin():
    exchange = settings(1)
    with job() as running:
        server = running.start(run_server, 0, exchange, 2)
        options = {"warm_start_steps": 1000, **WAIT}
        other = running.start(run_replica, 1, exchange, 3, options)
        leader = running.start(run_replica, 0, exchange, 1000, options, 0.01)
        running.wait_for("steps-0", 5)
        assert running.store.add("steps-1", 0) == 0
        leader.kill()
        assert other.result()["counters"].num_steps == 3
        assert server.result().lost == (0,)


def test_a_replica_goes_on_from_its_state():
    exchange, options = settings(2), {"n_push": 4, "n_fetch": 8, **WAIT}
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 1) for shard in range(2)]
        # It stops after 6 steps, with two gradients that have not been pushed.
        weights = running.start(run_interrupted_replica, exchange, 12, options).result()
        reports = [server.result() for server in servers]
    torch.testing.assert_close(weights, train_alone(12)[-1], rtol=0, atol=1e-6)
    assert [report.updates for report in reports] == [3, 3]


def test_a_killed_server_that_comes_back_loses_nothing(tmp_path):
    exchange, steps = settings(2), 60
    with job() as running:
        servers = [running.start(run_server, s, exchange, 1, make_sgd, make_model, tmp_path) for s in range(2)]
        replica = running.start(run_replica, 0, exchange, steps, {"n_push": 2, "n_fetch": 6, **WAIT}, 0.01)
        running.wait_for("steps-0", 10)
        servers[0].kill()
        servers[0] = running.start(run_server, 0, exchange, 1, make_sgd, make_model, tmp_path)
        result = replica.result()
        reports = [server.result() for server in servers]
    assert [report.updates for report in reports] == [steps // 2] * 2
    torch.testing.assert_close(result["weights"][-1], train_alone(steps)[-1], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_with_a_quarter_of_the_replicas_killed_it_learns_as_much():
    accuracies = []
    for is_disturbed in (False, True):
        with job() as running:
            accuracies.append(learn(running, kills=is_disturbed))
    assert accuracies[0] > 0.85
    assert abs(accuracies[1] - accuracies[0]) <= 0.01, accuracies


def learn(running: Job, *, kills: bool) -> float:
    exchange, steps = settings(2), 600
    servers = [running.start(run_server, shard, exchange, 4, make_adagrad, make_classifier) for shard in range(2)]
    replicas = [running.start(run_learner, worker, exchange, 4, steps) for worker in range(4)]
    for worker in range(4):
        running.wait_for(f"steps-{worker}", steps // 4 + 1)
    if kills:
        replicas.pop().kill()
    running.store.add("go on", 1)
    accuracies = [replica.result() for replica in replicas]
    assert [server.result().lost for server in servers] == [(3,) if kills else ()] * 2
    assert len(set(accuracies)) == 1
    return float(accuracies[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_push": 0}, r"n_fetch and n_push must be 1 or more steps, but got \(1, 0\)"),
        ({"lr": -1.0}, "lr must be 0 or more"),
        ({"n_push": 4, "warm_start_steps": 10}, r"must be a multiple of n_push \(4\), but got 10; try 12"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(MethodError, match=message):
        Downpour(make_model(), exchange=ParameterServer(), **{"lr": 0.1, **options})
