"""Workers and servers train together: synchronous, asynchronous, and in between."""

import time

import pytest
import torch
from tests.methods.server_job import job
from tests.methods.server_tasks import (
    HalfForTest,
    loss_of,
    make_adagrad,
    make_adam,
    make_model,
    make_odd_model,
    make_plain_sgd,
    make_sgd,
    odd_loss,
    run_downpour_worker,
    run_odd_server,
    run_odd_worker,
    run_scheduled_worker,
    run_server,
    run_worker,
    settings,
    weights_of,
)

from sandtable.methods.data import BulkSynchronous
from sandtable.methods.server import Asynchronous, StaleSynchronous


def train_alone(factory, steps):
    model = make_model()
    optimizer = factory(list(model.named_parameters()))
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return weights_of(model)


@pytest.mark.parametrize(("factory", "shards", "workers"), [(make_sgd, 2, 2), (make_adam, 3, 2), (make_adagrad, 1, 4)])
def test_bulk_synchronous_equals_one_process_on_the_joined_batch(factory, shards, workers):
    exchange, sync, steps = settings(shards), BulkSynchronous(), 12
    with job() as running:
        servers = [running.start(run_server, shard, exchange, workers, sync, factory) for shard in range(shards)]
        ranks = [running.start(run_worker, worker, exchange, workers, sync, steps) for worker in range(workers)]
        results = [rank.result() for rank in ranks]
        reports = [server.result() for server in servers]
    expected = train_alone(factory, steps)
    for result in results:
        torch.testing.assert_close(result["weights"], expected, rtol=0, atol=1e-6)
    assert [report.updates for report in reports] == [steps] * shards
    assert all(report.done == tuple(range(workers)) and not report.lost for report in reports)


def test_asynchronous_workers_do_not_wait_for_one_that_sleeps():
    exchange, sync = settings(2), Asynchronous()
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 2, sync, make_plain_sgd) for shard in range(2)]
        # The slow one sleeps until the fast one has finished, which it could not if it waited.
        slow = running.start(run_worker, 1, exchange, 2, sync, 2, 0.0, None, (1, "steps-0", 40))
        fast = running.start(run_worker, 0, exchange, 2, sync, 40, 0.005)
        fast_result, slow_result = fast.result(), slow.result()
        reports = [server.result() for server in servers]
    assert fast_result["losses"][-1] < 0.7 * fast_result["losses"][0]
    assert fast_result["counters"].waiting_s < 0.05
    assert slow_result["counters"].waiting_s < 0.05
    assert [report.updates for report in reports] == [42, 42]
    # The slow worker's gradients belong to weights that have had many updates since.
    assert max(report.largest_delay for report in reports) > 5


def test_a_fast_worker_is_never_further_ahead_than_the_bound():
    exchange, sync, bound = settings(2), StaleSynchronous(bound=3), 3
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 2, sync, make_plain_sgd) for shard in range(2)]
        slow = running.start(run_worker, 1, exchange, 2, sync, 8, 0.15)
        fast = running.start(run_worker, 0, exchange, 2, sync, 14, 0.0)
        fast_counters, slow_counters = fast.result()["counters"], slow.result()["counters"]
        reports = [server.result() for server in servers]
    assert fast_counters.largest_lead == bound
    assert all(report.largest_lead == bound for report in reports)
    assert fast_counters.waiting_s > 0.3
    # Only the one ahead is held back.
    assert slow_counters.waiting_s < 0.05
    assert [report.updates for report in reports] == [22, 22]


def test_workers_of_equal_pace_do_not_wait_within_the_bound():
    exchange, sync = settings(1), StaleSynchronous(bound=50)
    with job() as running:
        server = running.start(run_server, 0, exchange, 2, sync, make_plain_sgd)
        ranks = [running.start(run_worker, worker, exchange, 2, sync, 20, 0.005) for worker in range(2)]
        results = [rank.result() for rank in ranks]
        server.result()
    assert all(result["counters"].waiting_s < 0.05 for result in results)


def test_counters_are_the_bytes_of_the_vectors_and_small_headers():
    exchange, sync, steps = settings(2), Asynchronous(), 10
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 1, sync) for shard in range(2)]
        counters = running.start(run_worker, 0, exchange, 1, sync, steps).result()["counters"]
        reports = [server.result() for server in servers]
    vector_bytes = 4 * weights_of(make_model()).numel()
    # To each of two servers: hello, join, pull, `steps` pushes and done, each answered.
    assert counters.num_messages == 2 * 2 * (steps + 4)
    assert steps * vector_bytes < counters.sent_bytes < steps * vector_bytes + 200 * counters.num_messages
    assert (
        (steps + 1) * vector_bytes < counters.received_bytes < (steps + 1) * vector_bytes + 100 * counters.num_messages
    )
    assert counters.sent_bytes == sum(report.received_bytes for report in reports)
    assert counters.received_bytes == sum(report.sent_bytes for report in reports)
    assert counters.communication_s > 0


def test_compressed_pushes_train_and_are_smaller():
    exchange, sync, steps = settings(2), BulkSynchronous(), 25
    with job() as running:
        servers = [running.start(run_server, s, exchange, 2, sync, make_sgd, None, HalfForTest()) for s in range(2)]
        ranks = [running.start(run_worker, w, exchange, 2, sync, steps, 0.0, HalfForTest()) for w in range(2)]
        results = [rank.result() for rank in ranks]
        [server.result() for server in servers]
    numbers = weights_of(make_model()).numel()
    assert results[0]["losses"][-1] < 0.5 * results[0]["losses"][0]
    torch.testing.assert_close(results[0]["weights"], results[1]["weights"], rtol=0, atol=0)
    torch.testing.assert_close(results[0]["weights"], train_alone(make_sgd, steps), rtol=0, atol=1e-2)
    counters = results[0]["counters"]
    assert results[0]["cost"].sent_bytes == 2 * numbers
    assert results[0]["cost"].received_bytes == 4 * numbers
    assert steps * 2 * numbers < counters.sent_bytes < steps * 2 * numbers + 200 * counters.num_messages


def test_odd_models_equal_one_process():
    """Unused and frozen parameters, two dtypes, sparse gradients, channels-last weights, cut parameters."""
    exchange, sync, steps = settings(3), BulkSynchronous(), 5
    with job() as running:
        servers = [running.start(run_odd_server, shard, exchange, sync) for shard in range(3)]
        ranks = [running.start(run_odd_worker, worker, exchange, sync, steps) for worker in range(2)]
        results = [rank.result() for rank in ranks]
        [server.result() for server in servers]
    model = make_odd_model()
    optimizer = make_adam(list(model.named_parameters()))
    for _ in range(steps):
        odd_loss(model, 0, 1).backward()
        for parameter in model.parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        optimizer.step()
        optimizer.zero_grad()
    expected = [parameter.detach() for parameter in model.parameters()]
    for result in results:
        for found, wanted in zip(result, expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_scheduler_on_the_workers_sets_the_rate_on_the_servers():
    exchange, sync, steps = settings(2), BulkSynchronous(), 6
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 1, sync, make_plain_sgd) for shard in range(2)]
        found = running.start(run_scheduled_worker, exchange, sync, steps).result()
        [server.result() for server in servers]
    model = make_model()
    optimizer = make_plain_sgd(list(model.named_parameters()))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(found, weights_of(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("late_s", [0.0, 2.0])
def test_push_and_pull_may_have_periods_of_their_own(late_s):
    """As in Downpour: accumulated gradients are pushed every second step, weights fetched every third."""
    exchange, sync = settings(2), Asynchronous()
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 2, sync, make_adagrad) for shard in range(2)]
        ranks = [running.start(run_downpour_worker, 0, exchange, sync, 12)]
        time.sleep(late_s)  # by then the first worker waits for the second to synchronize
        ranks.append(running.start(run_downpour_worker, 1, exchange, sync, 12))
        results = [rank.result() for rank in ranks]
        reports = [server.result() for server in servers]
    assert all(counters.num_pushes == 6 and counters.num_pulls == 1 + 4 + 1 for _, counters in results)
    assert [report.updates for report in reports] == [12, 12]
    # After `synchronize` all replicas are equal.
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=0)
