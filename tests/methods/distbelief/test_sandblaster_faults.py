"""What happens when a replica, a server or the coordinator dies, or when a replica is slow."""

import signal
import time

import numpy as np
import pytest
from tests.methods.distbelief.sandblaster_tasks import (
    NUM_PORTIONS,
    NUM_SAMPLES,
    make_settings,
    run_coordinator,
    run_replica,
    run_stranger,
    run_vector_server,
    start_vector_servers,
)
from tests.methods.server_job import job

ITERATIONS = 12


@pytest.fixture(scope="module")
def undisturbed() -> tuple[np.ndarray, list[float], int]:
    """Return weights, losses and number of evaluations of an undisturbed run."""
    settings = make_settings(1)
    with job() as running:
        servers = start_vector_servers(running, settings)
        coordinator = running.start(run_coordinator, settings, ITERATIONS)
        replica = running.start(run_replica, 1, settings)
        report, losses, _ = coordinator.result()
        weights = replica.result()["weights"].numpy()
        assert servers[0].result().num_counted == NUM_PORTIONS * report.num_evaluations
    return weights, losses, report.num_evaluations


def test_a_killed_replica_costs_its_portion_and_nothing_else(undisturbed):
    weights, losses, num_evaluations = undisturbed
    settings = make_settings()
    with job() as running:
        servers = start_vector_servers(running, settings)
        coordinator = running.start(run_coordinator, settings, ITERATIONS)
        survivor = running.start(run_replica, 1, settings, 0.005)
        victim = running.start(run_replica, 2, settings, 0.005)
        running.wait_for("portions-2", 5)
        victim.kill()
        report, found, _ = coordinator.result()
        result = survivor.result()
        held = [server.result() for server in servers]
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    np.testing.assert_allclose(result["weights"], weights, rtol=0, atol=1e-8)
    assert report.num_evaluations == num_evaluations
    assert report.num_recoveries == 0
    assert all(one.num_counted == NUM_PORTIONS * num_evaluations for one in held)


def test_a_replica_that_hangs_costs_no_more_than_a_killed_one(undisturbed):
    weights, losses, _ = undisturbed
    settings = make_settings(timeout_s=6.0)
    with job() as running:
        servers = start_vector_servers(running, settings)
        coordinator = running.start(run_coordinator, settings, ITERATIONS)
        survivor = running.start(run_replica, 1, settings, 0.005)
        sleeper = running.start(run_replica, 2, settings, 0.005)
        running.wait_for("portions-2", 5)
        sleeper.kill(signal.SIGSTOP)
        running.wait_for("iterations", ITERATIONS + 1)
        # It is told the end like everybody else, if it wakes up in time.
        sleeper.kill(signal.SIGCONT)
        _, found, _ = coordinator.result()
        results = [survivor.result(), sleeper.result()]
        for server in servers:
            server.result()
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    for result in results:
        np.testing.assert_allclose(result["weights"], weights, rtol=0, atol=1e-8)
    assert results[1]["report"].num_late <= 1


def test_a_replica_may_join_later(undisturbed):
    _, losses, _ = undisturbed
    settings = make_settings()
    with job() as running:
        servers = start_vector_servers(running, settings)
        coordinator = running.start(run_coordinator, settings, ITERATIONS)
        replicas = [running.start(run_replica, 1, settings, 0.005)]
        running.wait_for("iterations", 2)
        replicas.append(running.start(run_replica, 2, settings))
        _, found, _ = coordinator.result()
        results = [replica.result() for replica in replicas]
        for server in servers:
            server.result()
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    assert results[1]["report"].num_portions > 0
    np.testing.assert_array_equal(results[0]["weights"], results[1]["weights"])


@pytest.mark.parametrize("every", [1, 3])
def test_a_killed_server_brings_all_back_to_a_common_checkpoint(tmp_path, every, undisturbed):
    weights, losses, _ = undisturbed
    settings, checkpoints = make_settings(), (tmp_path, every)
    with job() as running:
        servers = start_vector_servers(running, settings, checkpoints)
        coordinator = running.start(run_coordinator, settings, ITERATIONS)
        replicas = [running.start(run_replica, number, settings, 0.005) for number in (1, 2)]
        running.wait_for("iterations", 5)
        servers[1].kill()
        servers[1] = running.start(run_vector_server, 1, settings, checkpoints)
        report, found, _ = coordinator.result()
        results = [replica.result() for replica in replicas]
        for server in servers:
            server.result()
    assert report.num_recoveries == 1
    # Iterations since the checkpoint were made again, to the same losses.
    assert len(losses) <= len(found) <= len(losses) + every - 1
    np.testing.assert_allclose(found[-1], losses[-1], rtol=1e-9)
    np.testing.assert_allclose(results[0]["weights"], weights, rtol=0, atol=1e-8)
    kept = {path.name for path in tmp_path.iterdir()}
    last = [iteration for iteration in range(ITERATIONS + 1) if iteration % every == 0][-2:]
    assert kept == {f"shard-{shard}-of-2-iteration-{iteration}.pt" for shard in (0, 1) for iteration in last}


def test_a_killed_coordinator_started_again_goes_on_from_the_checkpoint(tmp_path, undisturbed):
    weights, losses, _ = undisturbed
    settings = make_settings()
    with job() as running:
        servers = start_vector_servers(running, settings, (tmp_path, 1))
        coordinator = running.start(run_coordinator, settings, ITERATIONS)
        replica = running.start(run_replica, 1, settings, 0.005)
        running.wait_for("iterations", 4)
        coordinator.kill()
        done = running.store.add("iterations", 0)
        report, found, _ = running.start(run_coordinator, settings, ITERATIONS).result()
        result = replica.result()
        for server in servers:
            server.result()
    assert len(found) <= len(losses) - done + 1
    np.testing.assert_allclose(found, losses[-len(found) :], rtol=1e-9)
    np.testing.assert_allclose(result["weights"], weights, rtol=0, atol=1e-8)
    assert report.num_iterations == ITERATIONS


def test_a_server_started_again_without_checkpoints_is_an_error_everywhere():
    settings = make_settings(timeout_s=4.0)
    with job() as running:
        servers = start_vector_servers(running, settings)
        coordinator = running.start(run_coordinator, settings, 10_000)
        replica = running.start(run_replica, 1, settings, 0.005)
        running.wait_for("iterations", 2)
        servers[0].kill()
        servers[0] = running.start(run_vector_server, 0, settings)
        assert "MethodError: shards must have a checkpoint in common" in coordinator.error()
        assert "MethodError: the coordinator refused: the server failed: MethodError: shards must" in replica.error()
        for server in servers:
            assert "must have a coordinator, but had none for 4 s" in server.error()


def test_a_coordinator_without_replicas_says_so_within_the_timeout():
    settings = make_settings(1, timeout_s=3.0)
    with job() as running:
        server = running.start(run_vector_server, 0, settings)
        coordinator = running.start(run_coordinator, settings, 3)
        began = time.monotonic()
        assert "no replica reported one (outstanding: none, there is no replica)" in coordinator.error()
        assert "must have a coordinator" in server.error()
        assert time.monotonic() - began < 4 * 3.0


def test_a_replica_of_another_model_is_refused():
    settings = make_settings(1)
    with job() as running:
        server = running.start(run_vector_server, 0, settings)
        coordinator = running.start(run_coordinator, settings, 2)
        stranger = running.start(run_stranger, settings)
        assert "digest must be the same on workers and servers" in stranger.error()
        replica = running.start(run_replica, 1, settings)
        coordinator.result()
        replica.result()
        server.result()


@pytest.mark.slow
def test_a_replica_five_times_slower_costs_less_than_a_third():
    """Five replicas at full speed and one at a fifth could do it in 6 / 5.2 = 1.15 times the time.

    WorkQueue are so large that a second the slow one begins near the end would double the time, if nobody else did it.
    """
    seconds = {}
    for slowdown in (1, 5):
        settings = make_settings(1)
        pauses_s = [0.2] * 5 + [0.2 * slowdown]
        with job() as running:
            server = running.start(run_vector_server, 0, settings)
            replicas = [running.start(run_replica, 1 + i, settings, pause_s) for i, pause_s in enumerate(pauses_s)]
            for number in range(1, 7):
                running.wait_for(f"started-{number}", 1)
            coordinator = running.start(run_coordinator, settings, 4, 4)
            report, _, seconds[slowdown] = coordinator.result(120)
            results = [replica.result() for replica in replicas]
            server.result()
        assert report.num_portions == NUM_SAMPLES / 4
    slow, fast = results[5]["report"], results[0]["report"]
    assert 0 < slow.num_portions + slow.num_late < (fast.num_portions + fast.num_late) / 3
    assert report.num_twice > 0
    assert seconds[5] < 4 / 3 * seconds[1], seconds
