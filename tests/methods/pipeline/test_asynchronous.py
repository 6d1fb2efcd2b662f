"""Asynchronous schedules follow the staleness formula, to the last weight."""

from math import ceil

import pytest
from tests.methods.pipeline.training import adam, batches, momentum, stale, train
from tests.methods.processes import run

from sandtable.methods.pipeline import PipeDream, PipeDream2BW


def depth(replicas, stage):
    return ceil(sum(replicas[stage:]) / replicas[stage])


def stashed(replicas):
    """w(t+1) = w(t) - lr * grad f(w_1(t-n+1), ..., w_n(t)), a step being one minibatch of each replica.

    In a pipeline replicas settle a round when the next one has come back: one update more behind.
    """
    behind = [depth(replicas, stage) - 1 + (count > 1 and len(replicas) > 1) for stage, count in enumerate(replicas)]
    return lambda stage, number: max(0, number // replicas[stage] - behind[stage])


def synchronised(replicas):
    """Vertical sync: all stages include as many minibatches as the input stage did."""
    own = stashed(replicas)
    return lambda stage, number: replicas[0] * own(0, number) // replicas[stage]


def on_a_rank(replicas, optimizer, num, rows, settings):
    return train(batches(num, rows), len(replicas), optimizer, replicas=replicas, **settings)


@pytest.mark.parametrize("replicas", [(2,), (1, 1), (1, 1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2), (3, 1)], ids=str)
def test_weights_after_twenty_minibatches_are_those_of_the_formula(replicas):
    expected = stale(batches(20), replicas, stashed(replicas), lambda stage: replicas[stage], momentum)
    ranks = run(sum(replicas), on_a_rank, replicas, momentum, 20, 8, {"schedule": PipeDream()})
    check(ranks, expected)
    for rank in ranks:
        for each in rank["passes"]:
            assert each.version == stashed(replicas)(each.stage, each.minibatch)
        assert rank["most_held"] == depth(replicas, rank["passes"][0].stage)


@pytest.mark.parametrize("replicas", [(1, 1, 1), (2, 1, 1)], ids=str)
def test_vertical_sync_uses_the_version_of_the_input_stage_everywhere(replicas):
    expected = stale(batches(20), replicas, synchronised(replicas), lambda stage: replicas[stage], adam)
    ranks = run(sum(replicas), on_a_rank, replicas, adam, 20, 8, {"schedule": PipeDream(vertical_sync=True)})
    check(ranks, expected)
    if replicas == (1, 1, 1):
        assert [rank["most_held"] for rank in ranks] == [3, 3, 3]


@pytest.mark.parametrize(("replicas", "rows"), [((1, 1, 1), (8, 8, 6)), ((2, 1), 8)], ids=str)
def test_two_versions_delay_every_update_by_one_batch(replicas, rows):
    expected = stale(batches(7, rows), replicas, lambda _, number: max(0, number - 1), lambda _: 1, momentum)
    ranks = run(sum(replicas), on_a_rank, replicas, momentum, 7, rows, {"schedule": PipeDream2BW(4)})
    check(ranks, expected)
    assert max(rank["most_held"] for rank in ranks) <= 2


def test_smaller_batches_a_round_that_is_not_full_and_recomputation_change_nothing():
    replicas, rows = (2, 1), (8, 8, 5, 8, 3)
    expected = stale(batches(9, rows), replicas, stashed(replicas), lambda stage: replicas[stage], adam)
    check(run(3, on_a_rank, replicas, adam, 9, rows, {"schedule": PipeDream(), "recompute": True}), expected)


def check(ranks, expected):
    seen = set()
    for rank in ranks:
        for name, weight in rank["weights"].items():
            assert (weight - expected[name]).abs().max() < 1e-6, (rank["rank"], name)
            seen.add(name)
    assert seen == set(expected)
