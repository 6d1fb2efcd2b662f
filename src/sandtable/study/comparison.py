"""Runs side by side, as plain data: computed once, then drawn as a table, as plots and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from sandtable.study.results import StudyRun

__all__ = ["ComparisonRow", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One run compared with the first, the baseline."""

    run: StudyRun
    points: float
    """Accuracy minus the baseline's, in percentage points."""
    communication_less: float
    """How many times less communication time than the baseline; infinity if it had none."""
    speed_up: float
    """How many times faster the same epochs were done."""
    sooner_to_first: float | None
    """How many times faster it reached the baseline's final accuracy minus one point; None if it never did."""


def compare(runs: Sequence[StudyRun]) -> list[ComparisonRow]:
    """Return a row per run, in their order; the first is the baseline."""
    if not runs:
        return []
    first = runs[0]
    goal = first.accuracy - 0.01
    first_s = seconds_to(first, goal)
    rows = []
    for run in runs:
        reached_s = seconds_to(run, goal)
        rows.append(
            ComparisonRow(
                run=run,
                points=100 * (run.accuracy - first.accuracy),
                communication_less=_ratio(first.communication_s, run.communication_s),
                speed_up=_ratio(first.seconds, run.seconds),
                sooner_to_first=None if reached_s is None or first_s is None else _ratio(first_s, reached_s),
            )
        )
    return rows


def seconds_to(run: StudyRun, accuracy: float) -> float | None:
    """Return the training time until an epoch ended with that accuracy; None if none did."""
    seconds = 0.0
    for epoch in run.epochs:
        seconds += epoch.seconds
        if epoch.accuracy >= accuracy:
            return seconds
    return None


def _ratio(first: float, other: float) -> float:
    return first / other if other else float("inf")
