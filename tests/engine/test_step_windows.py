"""Which step of a run is typical, and how much the others differ."""

import pytest
from tests.engine.building import Script, make_trace

from sandtable.cluster import load
from sandtable.engine import Timeline, simulate
from sandtable.errors import SimulationError
from sandtable.trace import Group


def run(*lengths: int, num_skipped: int = 1) -> Timeline:
    """Simulate one rank whose steps run these numbers of equal operators."""
    script = Script()
    for length in lengths:
        for _ in range(length):
            script.op(2)
        script.step()
    groups = (Group("world", (0,)),)
    trace = make_trace({0: script}, classes={0: [0]}, groups=groups, num_skipped_steps=num_skipped)
    return simulate(trace, load("dgx-a100", nodes=1))


@pytest.mark.parametrize(
    ("lengths", "described"),
    [
        ((5, 5, 5), 3),  # of equal steps the last
        ((9, 40, 5), 3),  # of two middle ones the shorter
        ((9, 5, 40), 2),
        ((9, 5, 40, 5, 40, 5), 6),
        ((9, 5, 6, 7), 3),
        ((9, 5), 2),  # the first step sets up what the others use, so it does not count
        ((9,), 1),
    ],
)
def test_the_step_described_takes_as_long_as_the_median(lengths: tuple[int, ...], described: int):
    timeline = run(*lengths)
    assert timeline.step_number == described
    assert timeline.step_ns == timeline.steps.median_ns
    assert timeline.operator_counts(0).count.tolist() == [lengths[described - 1]]
    assert timeline.breakdown(0).total == pytest.approx(timeline.step_ns, abs=2)


def test_every_step_but_the_first_is_timed():
    durations = run(9, 5, 40, 5).steps.durations_ns
    assert len(durations) == 3
    assert durations[1] == pytest.approx(8 * durations[0], rel=0.02)


@pytest.mark.parametrize(
    ("num_skipped", "first", "described"),
    [(1, 2, 4), (2, 3, 6), (3, 4, 6), (6, 6, 6)],  # the last step is never skipped
)
def test_steps_of_a_warm_up_are_not_timed(num_skipped: int, first: int, described: int):
    timeline = run(9, 40, 40, 40, 5, 6, num_skipped=num_skipped)
    assert (timeline.steps.first_number, timeline.step_number) == (first, described)
    assert len(timeline.steps.durations_ns) == 6 - first + 1


def test_ranks_with_more_steps_are_timed_over_those_that_all_made():
    scripts = {0: Script(), 1: Script()}
    for rank, script in scripts.items():
        for _ in range(5 if rank else 3):
            script.op(2)
            script.step()
    trace = make_trace(scripts, classes={0: [0], 1: [1]}, groups=(Group("world", (0, 1)),))
    timeline = simulate(trace, load("dgx-a100", nodes=1))
    assert (len(timeline.steps.durations_ns), timeline.step_number) == (2, 3)


def test_a_run_without_steps_has_no_step_time():
    script = Script()
    script.op(2)
    trace = make_trace({0: script}, classes={0: [0]}, groups=(Group("world", (0,)),))
    with pytest.raises(SimulationError, match="but this one ended none"):
        _ = simulate(trace, load("dgx-a100", nodes=1)).step_ns
