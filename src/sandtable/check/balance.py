"""Balance: a stage that computes longer than the others, and groups whose traffic takes the slow links."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from sandtable.check.cost import cost_text, saved_by_order, severity_of
from sandtable.check.relations import at_line
from sandtable.engine.breakdown import Breakdown
from sandtable.engine.timeline import Timeline, axis_name
from sandtable.findings import Evidence, Finding, name_ranks
from sandtable.trace import Collective, Kind, RankView, Trace, format_ranks
from sandtable.units import format_bytes, format_seconds

__all__ = ["slow_link", "slow_stage"]

_WORTH_A_WORD = 0.1
_SAVED = 0.05
_UNEVEN = 1.3
"""How many times the mean of all ranks the slowest must compute."""


def slow_stage(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report ranks that compute much longer than the others, who wait for them."""
    if timeline is None or len(trace.classes) < 2:
        return
    parts = {row.representative: timeline.breakdown(row.representative) for row in trace.classes}
    busy = {rank: _busy(part) for rank, part in parts.items()}
    sizes = {row.representative: row.size for row in trace.classes}
    mean = sum(busy[rank] * sizes[rank] for rank in busy) / sum(sizes.values())
    slowest = max(busy, key=lambda rank: (busy[rank], -rank))
    waiting = max(part.bubble + part.straggler for rank, part in parts.items() if rank != slowest)
    saved = min(busy[slowest] - mean, waiting)
    if busy[slowest] < _UNEVEN * mean or saved < _WORTH_A_WORD * timeline.step_ns:
        return
    row = trace.class_of(slowest)
    view = trace.rank(slowest)
    yield Finding(
        rule="slow-stage",
        severity=severity_of(timeline, saved / 2),  # the first and the last stage always differ a little
        message=f"ranks should compute equally long, but {name_ranks(row.ranks)} "
        f"{'takes' if row.size == 1 else 'take'} {format_seconds(busy[slowest] / 1e9)} per step and the mean is "
        f"{format_seconds(mean / 1e9)}; balance would save up to {cost_text(timeline, saved)}",
        ranks=row.ranks,
        evidence=tuple(_work_of(view, timeline)),
        remedy="move layers from this stage to the others, counting the embedding and the loss as layers",
    )


def slow_link(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report groups that would fit into a node, but span nodes, if a step were shorter with them inside nodes."""
    if timeline is None or trace.num_nodes < 2:
        return
    view = trace.rank(trace.classes[0].representative)
    calls: dict[str, list[Collective]] = defaultdict(list)
    for call in view.collectives(view.step_slice(timeline.step_number)):
        if len(call.group.ranks) > 1:
            calls[axis_name(call.group.name) + str(call.group.ranks)].append(call)
    inside = [sum(call.bytes_in for call in own) for own in calls.values() if _num_nodes(trace, own[0]) == 1]
    communication = timeline.breakdown(view.rank).communication
    for own in calls.values():
        group, moved = own[0].group, sum(call.bytes_in for call in own)
        crosses = _num_nodes(trace, own[0]) > 1 and len(group.ranks) <= trace.ranks_per_node
        exposed = communication.get(axis_name(group.name), 0)
        if not crosses or not inside or exposed < _SAVED * timeline.step_ns:
            continue
        saved = saved_by_order(timeline, _by_axis(trace, axis_name(group.name)))
        if saved is None:
            is_worse = moved >= 2 * max(inside) and exposed >= _WORTH_A_WORD * timeline.step_ns
            saved = exposed / 2 if is_worse else 0
        if saved < _SAVED * timeline.step_ns:
            continue
        places = Counter(call.line for call in own)
        yield Finding(
            rule="slow-link",
            severity=severity_of(timeline, saved),
            message="the groups that others wait for most should lie inside a node, but ranks "
            f"{format_ranks(group.ranks)} of axis {axis_name(group.name)} are on {_num_nodes(trace, own[0])} nodes and "
            f"move {format_bytes(moved)} per step; as neighbours they would save {cost_text(timeline, saved)}",
            ranks=group.ranks,
            evidence=tuple(
                at_line(group.ranks, f"calls this {count} times per step", place)
                for place, count in places.most_common(3)
            ),
            remedy='make this axis the innermost of the mesh, the last of init_device_mesh("cuda", (dp, tp)), so that '
            "its ranks are neighbours",
        )


def _by_axis(trace: Trace, axis: str) -> list[int]:
    """Return all ranks in an order in which those of each group of the axis are neighbours."""
    members = [group.ranks for group in trace.groups if axis_name(group.name) == axis]
    order = dict.fromkeys(rank for ranks in members for rank in ranks)
    return [*order, *(rank for rank in range(trace.world_size) if rank not in order)]


def _num_nodes(trace: Trace, call: Collective) -> int:
    return len({rank // trace.ranks_per_node for rank in call.group.ranks})


def _busy(part: Breakdown) -> int:
    return part.forward + part.backward + part.recompute + part.optimizer


def _work_of(view: RankView, timeline: Timeline) -> Iterator[Evidence]:
    """Yield the lines that run most operators on the slow rank."""
    span = view.step_slice(timeline.step_number)
    records = view.records
    lines = records.line[span][records.kind[span] == Kind.OPERATOR]
    values, counts = np.unique(lines, return_counts=True)
    for index in np.argsort(-counts, kind="stable")[:3].tolist():
        place = view.line(int(values[index]))
        if place.file:
            yield at_line(view.rank_class.ranks, f"runs {int(counts[index]):,} operators per step", place)
