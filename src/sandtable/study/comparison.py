"""Runs side by side, as plain data: computed once, then drawn as a table, as plots and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from sandtable.study.results import Run

__all__ = ["Row", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run beside the first, the yardstick."""

    run: Run
    points: float
    """Accuracy less the first's, in points of a hundred."""
    communication_less: float
    """How many times less communication time than the first; infinity: it had none."""
    speed_up: float
    """How many times sooner the same epochs were done."""
    sooner_to_first: float | None
    """How many times sooner it reached the accuracy the first ended with, less a point; None: it never did."""


def compare(runs: Sequence[Run]) -> list[Row]:
    """A row for each run, in their order; the first is the yardstick."""
    if not runs:
        return []
    first = runs[0]
    goal = first.accuracy - 0.01
    first_s = seconds_to(first, goal)
    rows = []
    for run in runs:
        reached_s = seconds_to(run, goal)
        rows.append(
            Row(
                run=run,
                points=100 * (run.accuracy - first.accuracy),
                communication_less=_ratio(first.communication_s, run.communication_s),
                speed_up=_ratio(first.seconds, run.seconds),
                sooner_to_first=None if reached_s is None or first_s is None else _ratio(first_s, reached_s),
            )
        )
    return rows


def seconds_to(run: Run, accuracy: float) -> float | None:
    """Seconds of the training clock until an epoch ended with that accuracy."""
    seconds = 0.0
    for epoch in run.epochs:
        seconds += epoch.seconds
        if epoch.accuracy >= accuracy:
            return seconds
    return None


def _ratio(first: float, other: float) -> float:
    return first / other if other else float("inf")
