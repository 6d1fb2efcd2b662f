"""Synchronous schedules match one process: loss, every gradient, every weight."""

import pytest
from tests.methods.pipeline.training import alone, batches, train
from tests.methods.processes import run

from sandtable.methods.pipeline import Flush, GPipe, Interleaved

_ROWS = (8, 8, 6, 8, 5)
"""The last batches are smaller: 6 rows make 3 micro-batches, 5 make one."""


def on_a_rank(num_stages, settings):
    return train(batches(5, _ROWS), num_stages, **settings)


@pytest.mark.parametrize(
    ("world", "num_stages", "settings"),
    [
        (2, 2, {"schedule": GPipe(4)}),
        (2, 2, {"schedule": Flush(4)}),
        (2, 4, {"schedule": Interleaved(4)}),
        (4, 4, {"schedule": GPipe(4)}),
        (4, 4, {"schedule": Flush(4)}),
        (4, 8, {"schedule": Interleaved(4)}),
        (4, 2, {"schedule": Flush(4), "replicas": (2, 2)}),
        (2, 1, {"schedule": Flush(2), "replicas": (2,)}),
        (2, 2, {"schedule": Flush(4), "recompute": True}),
    ],
    ids=str,
)
def test_training_equals_that_of_one_process(world, num_stages, settings):
    expected = alone(batches(5, _ROWS), num_stages)
    ranks = run(world, on_a_rank, num_stages, settings)
    seen = set()
    for rank in ranks:
        for step, gradients in enumerate(rank["gradients"]):
            for name, gradient in gradients.items():
                assert (gradient - expected["gradients"][step][name]).abs().max() < 1e-5, (rank["rank"], step, name)
        assert len(rank["gradients"]) == 5
        for name, weight in rank["weights"].items():
            assert (weight - expected["weights"][name]).abs().max() < 1e-5
            seen.add(name)
    assert seen == set(expected["weights"])
    if "replicas" not in settings:
        assert ranks[-1]["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        assert all(loss is None for loss in ranks[0]["losses"])
