"""Configurations are ranked by the objectives, and whoever loses is told why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.trials import failed, plan_of, trial

from sandtable.errors import PlanError
from sandtable.planner.trial import TrialState


def names(trials):
    return [one.values["x"] for one in trials]


def test_the_best_comes_first_and_close_ones_are_ties():
    plan = plan_of(trial("slow", 1.5), trial("close", 1.015), trial("best", 1.0))
    assert names(plan.ranked) == ["best", "close", "slow"]
    assert names(plan.ties) == ["best", "close"]


def test_more_tokens_per_second_are_better():
    small = trial("small", 1.0, tokens_per_step=1000)
    large = trial("large", 3.0, tokens_per_step=4000)
    assert names(plan_of(small, large, objectives=("throughput",)).ranked) == ["large", "small"]
    assert names(plan_of(small, large).ranked) == ["small", "large"]


def test_an_objective_without_its_figure_names_the_option():
    with pytest.raises(PlanError, match="throughput needs --tokens-per-step"):
        _ = plan_of(trial("one"), objectives=("throughput",)).ranked


def test_configurations_above_the_allowed_memory_are_too_large():
    plan = plan_of(trial("full", gib=79), trial("fits", 2.0, gib=60), max_memory=0.9)
    assert names(plan.ranked) == ["fits"]
    assert names(plan.too_large) == ["full"]


def test_the_nearest_miss_comes_first():
    full = TrialState.OUT_OF_MEMORY
    plan = plan_of(
        failed("unknown", "CUDA out of memory", state=full),
        failed("far", "CUDA out of memory", state=full, needed_gib=200),
        failed("near", "CUDA out of memory", state=full, needed_gib=90),
    )
    assert plan.best is None
    assert names(plan.too_large) == ["near", "far", "unknown"]


def test_a_loser_is_shown_the_parts_that_grew_the_most():
    best = trial("best", 1.0, parts={"forward": 0.5, "backward": 0.5})
    loser = trial("loser", 2.0, parts={"forward": 0.6, "backward": 0.5, "bubble": 0.9})
    plan = plan_of(best, loser)
    assert [(part.part, round(part.seconds, 3)) for part in plan.growth(loser)] == [("bubble", 0.9), ("forward", 0.1)]
    assert plan.growth(best) == ()


def test_a_knob_that_changes_no_figure_is_named():
    rows = [trial(name, seconds, values={"y": y}) for name, seconds in (("a", 1.0), ("b", 2.0)) for y in (1, 2)]
    assert plan_of(*rows).ignored_knobs == ("y",)
    assert plan_of(trial("a", 1.0), trial("b", 1.0)).ignored_knobs == ("x",)
    assert plan_of(trial("a", 1.0)).ignored_knobs == ()


def test_different_work_per_step_is_noticed():
    assert plan_of(trial("a"), trial("b", model_flops=2 * 10**15)).work_differs()
    assert not plan_of(trial("a"), trial("b")).work_differs()


POINTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=12)


@given(POINTS)
def test_the_front_is_what_no_other_configuration_beats(points):
    rows = [trial(str(number), seconds, gib=gib) for number, (seconds, gib) in enumerate(points)]
    front = {points[int(one.values["x"])] for one in plan_of(*rows, objectives=("time", "memory")).front}
    beaten = {
        (time, gib)
        for time, gib in points
        if any(other != (time, gib) and other[0] <= time and other[1] <= gib for other in points)
    }
    assert front == set(points) - beaten
