"""Cost: the time per step that a mistake costs, by simulating the run without it, and how severe that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sandtable.engine.compute.measured import MeasuredTable
from sandtable.engine.simulate import simulate
from sandtable.engine.timeline import Timeline
from sandtable.errors import SandtableError
from sandtable.findings import Severity
from sandtable.trace import P2P_OPS, Group, RankClass, Records, Trace
from sandtable.units import format_seconds

__all__ = ["cost_text", "saved_by_order", "saved_without", "severity_of"]

_WASTEFUL = 0.1
"""The share of a step that makes a waste worth a warning."""

_LEAST_NS = 2_000_000
"""Less per step is no warning: it matters in models only that are too small to need a cluster."""

_MOST_INSTRUCTIONS = 400_000
"""Runs with more are not simulated again."""


def severity_of(timeline: Timeline, saved_ns: float) -> Severity:
    """Return how severe a waste of so much time per step is."""
    is_large = saved_ns > _WASTEFUL * timeline.step_ns and saved_ns > _LEAST_NS
    return Severity.WARNING if is_large else Severity.NOTE


def cost_text(timeline: Timeline, saved_ns: float) -> str:
    """Say what it costs: `0.12 s of each step of 0.80 s (15 %) on dgx-a100`."""
    saved, step = format_seconds(saved_ns / 1e9), format_seconds(timeline.step_ns / 1e9)
    share = saved_ns / max(timeline.step_ns, 1)
    percent = f"{share:.0%}" if share >= 0.01 else "under 1%"
    return f"{saved} of each step of {step} ({percent}) on {timeline.cluster.name}"


def saved_without(
    timeline: Timeline, is_removed: Callable[[RankClass], npt.NDArray[np.bool_]], *, at_most: float
) -> float:
    """Return by how many nanoseconds a step is shorter without the records that `is_removed` marks in each class.

    `at_most` is returned where the run is too large to be simulated again.
    """
    if sum(len(program) for program in timeline.programs) > _MOST_INSTRUCTIONS:
        return at_most
    trace = timeline.trace
    classes = {row.representative: row for row in trace.classes}
    records = {
        rank: replace(row.records, records=_without(row.records.records, is_removed(row)))
        for rank, row in classes.items()
    }
    changed = Trace.assemble(
        records, classes={rank: row.ranks for rank, row in classes.items()}, groups=trace.groups, run=trace.run
    )
    try:
        other = simulate(changed, timeline.cluster, measured=MeasuredTable.for_cluster(timeline.cluster))
        return max(timeline.steps.median_ns - other.steps.median_ns, 0)
    except SandtableError:
        return at_most


def saved_by_order(timeline: Timeline, order: Sequence[int]) -> float | None:
    """Return by how many nanoseconds a step is shorter if the job's ranks are numbered anew, in this order.

    None where that cannot be simulated: the run is too large, or ranks send messages.
    """
    trace = timeline.trace
    if sum(len(program) for program in timeline.programs) > _MOST_INSTRUCTIONS or _has_messages(trace):
        return None
    number = {rank: place for place, rank in enumerate(order)}

    def renumbered(group: Group) -> Group:
        if group.size == trace.world_size:
            return group
        return replace(group, ranks=tuple(number[rank] for rank in group.ranks))

    records = {
        number[row.representative]: replace(
            row.records, rank=number[row.representative], groups=tuple(map(renumbered, row.records.groups))
        )
        for row in trace.classes
    }
    classes = {number[row.representative]: tuple(sorted(number[rank] for rank in row.ranks)) for row in trace.classes}
    try:
        changed = Trace.assemble(
            records, classes=classes, groups=[renumbered(group) for group in trace.groups], run=trace.run
        )
        other = simulate(changed, timeline.cluster, measured=MeasuredTable.for_cluster(timeline.cluster))
        return max(timeline.steps.median_ns - other.steps.median_ns, 0)
    except SandtableError:
        return None


def _has_messages(trace: Trace) -> bool:
    return any(op in P2P_OPS for row in trace.classes for op in row.records.call_ops)


def _without(records: Records, removed: npt.NDArray[np.bool_]) -> Records:
    return Records(**{name: column[~removed] for name, column in records.columns.items()})
