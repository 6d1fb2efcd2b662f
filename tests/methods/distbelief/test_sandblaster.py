"""Sandblaster L-BFGS in real processes: SciPy's steps, whichever replica computes which portion."""

import numpy as np
import pytest
import torch
from scipy.optimize import fmin_l_bfgs_b
from tests.methods.distbelief.sandblaster_tasks import (
    NUM_PORTIONS,
    NUM_SAMPLES,
    loss_of,
    make_model,
    make_settings,
    run_coordinator,
    run_replica,
    start_vector_servers,
    weights_of,
)
from tests.methods.server_job import job
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ITERATIONS = 20


def scipy_run() -> tuple[np.ndarray, list[float]]:
    """Return the weights after twenty iterations, and the loss after each."""
    model = make_model()

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        vector_to_parameters(torch.from_numpy(x.copy()), model.parameters())
        model.zero_grad()
        loss = loss_of(model, range(NUM_SAMPLES))
        loss.backward()
        return loss.item(), parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None]).numpy()

    start = weights_of(model).numpy()
    losses = [evaluate(start)[0]]
    end, _, _ = fmin_l_bfgs_b(
        evaluate, start, factr=0, pgtol=0, maxiter=ITERATIONS, callback=lambda x: losses.append(evaluate(x)[0])
    )
    return end, losses


@pytest.mark.parametrize("shards", [1, 3])
def test_replicas_and_shards_take_scipys_way(shards):
    settings = make_settings(shards)
    with job() as running:
        servers = start_vector_servers(running, settings)
        coordinator = running.start(run_coordinator, settings, ITERATIONS)
        replicas = [running.start(run_replica, number, settings) for number in (1, 2)]
        report, losses, _ = coordinator.result()
        results = [replica.result() for replica in replicas]
        held = [server.result() for server in servers]
    end, expected = scipy_run()
    np.testing.assert_allclose(losses, expected, rtol=1e-7)
    for result in results:
        np.testing.assert_allclose(result["weights"], end, rtol=0, atol=1e-6)
    assert report.num_iterations == ITERATIONS
    assert report.num_portions == NUM_PORTIONS
    # Every portion of every evaluation counted once, on every shard.
    assert [one.num_counted for one in held] == [NUM_PORTIONS * report.num_evaluations] * shards
    for result in results:
        assert result["report"].num_portions > 0
        # Once an evaluation, and the result; not once a portion.
        assert result["report"].num_fetches <= report.num_evaluations + 1
    done = sum(result["report"].num_portions + result["report"].num_late for result in results)
    assert done == NUM_PORTIONS * report.num_evaluations + report.num_twice - report.num_given_back
