"""What happens when a worker or a server dies, comes back, comes late, or never comes."""

import signal
import time

import pytest
import torch
from tests.methods.server_job import job
from tests.methods.server_tasks import (
    loss_of,
    make_model,
    make_plain_sgd,
    make_sgd,
    run_server,
    run_worker,
    settings,
    weights_of,
)

from sandtable.methods.data import BulkSynchronous
from sandtable.methods.server import Asynchronous, StaleSynchronous


@pytest.mark.parametrize("sync", [BulkSynchronous(), StaleSynchronous(bound=1), Asynchronous()])
def test_a_killed_worker_does_not_stop_the_others(sync):
    exchange = settings(2)
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 2, sync, make_plain_sgd) for shard in range(2)]
        survivor = running.start(run_worker, 0, exchange, 2, sync, 30, 0.01)
        victim = running.start(run_worker, 1, exchange, 2, sync, 10_000, 0.01)
        running.wait_for("steps-1", 3)
        victim.kill()
        result = survivor.result()
        reports = [server.result() for server in servers]
    assert len(result["losses"]) == 31
    assert result["losses"][-1] < result["losses"][0]
    assert all(report.done == (0,) and report.lost == (1,) for report in reports)


@pytest.mark.parametrize("sync", [BulkSynchronous(), StaleSynchronous(bound=2), Asynchronous()])
def test_a_worker_may_join_later(sync):
    exchange = settings(3)
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 1, sync, make_plain_sgd) for shard in range(3)]
        # The first stands still after ten steps until the second has joined.
        first = running.start(run_worker, 0, exchange, 2, sync, 40, 0.0, None, (10, "joined-1", 1))
        running.wait_for("steps-0", 10)
        second = running.start(run_worker, 1, exchange, 2, sync, 5)
        results = [first.result(), second.result()]
        reports = [server.result() for server in servers]
    # It begins where the others are, with the weights as they are.
    assert results[1]["first_clock"] == 10
    assert results[1]["losses"][0] == results[0]["losses"][10]
    assert all(report.done == (0, 1) and not report.lost for report in reports)
    expected = 40 + (0 if isinstance(sync, BulkSynchronous) else 5)
    assert [report.updates for report in reports] == [expected] * 3


def test_a_killed_worker_may_be_started_again_under_its_number():
    exchange, sync = settings(2), BulkSynchronous()
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 2, sync, make_plain_sgd) for shard in range(2)]
        steady = running.start(run_worker, 0, exchange, 2, sync, 60, 0.01, None, (30, "joined-1", 2))
        victim = running.start(run_worker, 1, exchange, 2, sync, 10_000)
        running.wait_for("steps-1", 5)
        victim.kill()
        again = running.start(run_worker, 1, exchange, 2, sync, 10)
        assert again.result()["first_clock"] > 0
        steady.result()
        assert all(server.result().done == (0, 1) for server in servers)


@pytest.mark.parametrize("every", [1, 7])
def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path, every):
    exchange, sync, steps = settings(2), Asynchronous(), 40
    with job() as running:
        checkpoints = tmp_path, every
        steady = running.start(run_server, 0, exchange, 2, sync, make_plain_sgd, checkpoints)
        victim = running.start(run_server, 1, exchange, 2, sync, make_plain_sgd, checkpoints)
        workers = [running.start(run_worker, worker, exchange, 2, sync, steps, 0.01) for worker in range(2)]
        running.wait_for("steps-0", 10)
        victim.kill()
        again = running.start(run_server, 1, exchange, 2, sync, make_plain_sgd, checkpoints)
        results = [worker.result() for worker in workers]
        reports = [steady.result(), again.result()]
    assert all(result["counters"].num_reconnections == 1 for result in results)
    assert reports[0].updates == 2 * steps
    # Every push was acknowledged; at most `every - 1` of those are missing.
    assert 2 * steps - (every - 1) <= reports[1].updates <= 2 * steps
    assert reports[1].first_version % every == 0
    assert all(result["losses"][-1] < result["losses"][0] for result in results)


def test_with_a_checkpoint_at_every_update_a_killed_server_changes_nothing(tmp_path):
    exchange, sync, steps = settings(2), BulkSynchronous(), 30
    with job() as running:
        checkpoints = tmp_path, 1
        servers = [running.start(run_server, s, exchange, 2, sync, make_sgd, checkpoints) for s in range(2)]
        workers = [running.start(run_worker, worker, exchange, 2, sync, steps) for worker in range(2)]
        running.wait_for("steps-0", 5)
        servers[0].kill()
        servers[0] = running.start(run_server, 0, exchange, 2, sync, make_sgd, checkpoints)
        results = [worker.result() for worker in workers]
        reports = [server.result() for server in servers]
    assert [report.updates for report in reports] == [steps, steps]
    model = make_model()
    optimizer = make_sgd(list(model.named_parameters()))
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    for result in results:
        torch.testing.assert_close(result["weights"], weights_of(model), rtol=0, atol=1e-6)


def test_a_terminated_server_writes_a_last_checkpoint(tmp_path):
    exchange, sync = settings(1), Asynchronous()
    with job() as running:
        checkpoints = tmp_path, 1000
        server = running.start(run_server, 0, exchange, 1, sync, make_plain_sgd, checkpoints)
        worker = running.start(run_worker, 0, exchange, 1, sync, 50, 0.01)
        running.wait_for("steps-0", 10)
        server.kill(signal.SIGTERM)
        report = server.result()
        assert report.was_stopped
        assert report.updates >= 10
        again = running.start(run_server, 0, exchange, 1, sync, make_plain_sgd, checkpoints)
        worker.result()
        after = again.result()
    assert after.first_version == report.updates
    assert after.updates == 50


def test_a_server_that_never_comes_back_is_named_within_the_timeout():
    exchange, sync = settings(2, timeout_s=3.0), Asynchronous()
    with job() as running:
        servers = [running.start(run_server, shard, exchange, 1, sync) for shard in range(2)]
        worker = running.start(run_worker, 0, exchange, 1, sync, 10_000, 0.01)
        running.wait_for("steps-0", 3)
        servers[1].kill()
        killed_at = time.monotonic()
        error = worker.error()
        assert time.monotonic() - killed_at < 2 * 3.0 + 1
        # The other server is left without workers, and says so.
        assert "had none for 3 s" in servers[0].error()
    assert "MethodError: the server of shard 1 (127.0.0.1:" in error
    assert "must answer worker 0 within 3 s" in error


def test_a_server_that_was_never_started_is_named():
    exchange, sync = settings(2, timeout_s=2.0), Asynchronous()
    with job() as running:
        server = running.start(run_server, 0, exchange, 1, sync)
        error = running.start(run_worker, 0, exchange, 1, sync, 1).error()
        server.error()
    assert "the server of shard 1 (address unknown) must answer worker 0 within 2 s" in error


def test_a_stopped_server_is_named():
    """Stop a process without ending it: connections stay open, so only a timeout detects it."""
    exchange, sync = settings(1, timeout_s=3.0), Asynchronous()
    with job() as running:
        server = running.start(run_server, 0, exchange, 1, sync)
        worker = running.start(run_worker, 0, exchange, 1, sync, 10_000, 0.01)
        running.wait_for("steps-0", 3)
        server.kill(signal.SIGSTOP)
        error = worker.error()
        server.kill()
    assert "the server of shard 0 (127.0.0.1:" in error
    assert "it did not answer" in error


def test_a_worker_that_hangs_is_named_to_those_who_wait_for_it():
    exchange, sync = settings(1, timeout_s=3.0), BulkSynchronous()
    with job() as running:
        server = running.start(run_server, 0, exchange, 2, sync)
        hanging = running.start(run_worker, 1, exchange, 2, sync, 10_000, 0.01)
        waiting = running.start(run_worker, 0, exchange, 2, sync, 10_000, 0.01)
        running.wait_for("steps-1", 3)
        hanging.kill(signal.SIGSTOP)
        error = waiting.error()
        hanging.kill()
        server.error()
    assert "waited 2.4 s for worker 1 (at step" in error


def test_a_worker_that_never_appears_is_not_waited_for_longer_than_the_timeout():
    exchange, sync = settings(1, timeout_s=3.0), BulkSynchronous()
    with job() as running:
        server = running.start(run_server, 0, exchange, 2, sync)
        time.sleep(1.0)  # So that the worker's patience ends after the server's.
        running.start(run_worker, 0, exchange, 2, sync, 5).result()
        assert server.result().lost == (1,)
