"""Accumulation: gradients that are reduced after every backward pass, though only the last one precedes the update."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sandtable.check.cost import cost_text, severity_of
from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import CallIdentity, EventKind, Line, Observations, ScriptEvent, Trace
from sandtable.units import format_bytes

__all__ = ["missing_no_sync"]

_LEAST_BYTES = 64
_DDP = "DistributedDataParallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """A backward pass and the gradients that it reduced."""

    begin: ScriptEvent
    num_bytes: int


def missing_no_sync(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report updates before which DDP reduced the same gradients several times."""
    found = {rank: passes for rank, seen in trace.observations.items() if (passes := _repeated(seen))}
    if not found:
        return
    rank, passes = next(iter(found.items()))
    needless = sum(one.num_bytes for one in passes[:-1])
    share = needless / sum(one.num_bytes for one in passes)
    saved = share * _reducing_ns(trace, timeline, rank) if timeline is not None else 0.0
    cost = f", which costs up to {cost_text(timeline, saved)}" if timeline is not None and saved else ""
    ranks = tuple(found)
    evidence = [
        Evidence(ranks=ranks, text=f"{text} {len(passes)} times per update", file=place.file, line=place.line)
        for place, text in (
            (passes[0].begin.place, "run a backward pass that reduces all gradients"),
            *((place, "run the forward pass that makes DDP reduce") for place in _forward_places(trace, rank, passes)),
        )
    ]
    no_sync = next(trace.observations[rank].of_kind(EventKind.NO_SYNC), None)
    if no_sync is not None:
        evidence.append(at_line(ranks, "enters no_sync, but the forward pass ran outside of it", no_sync.place))
    yield Finding(
        rule="missing-no-sync",
        severity=Severity.NOTE if timeline is None else severity_of(timeline, saved),
        message=f"gradients that are accumulated over {len(passes)} backward passes need one reduction, but "
        f"{len(passes)} are made, so {format_bytes(needless)} per update are sent for nothing{cost}",
        ranks=ranks,
        evidence=tuple(evidence),
        remedy="run all passes but the last one under model.no_sync(), the forward pass and the backward pass",
    )


def _repeated(seen: Observations) -> list[_Pass]:
    """Return the passes of the last update before which the same gradients were reduced more than once."""
    if not any(event.facts.get("wrapper") == _DDP for event in seen.of_kind(EventKind.WRAPPED)):
        return []
    repeated: list[_Pass] = []
    passes: list[_Pass] = []
    begin: ScriptEvent | None = None
    for event in seen.of_kind(EventKind.BACKWARD, EventKind.BACKWARD_END, EventKind.OPTIMIZER_STEP):
        if event.kind is EventKind.BACKWARD:
            begin = event
        elif event.kind is EventKind.BACKWARD_END and begin is not None:
            passes.append(_Pass(begin=begin, num_bytes=_reduced_bytes(seen.calls, begin.row, event.row)))
        elif event.kind is EventKind.OPTIMIZER_STEP:
            reducing = [one for one in passes if one.num_bytes >= _LEAST_BYTES]
            if len(reducing) > 1 and len({one.num_bytes for one in reducing}) == 1:
                repeated = reducing
            passes = []
    return repeated


def _reduced_bytes(calls: Sequence[CallIdentity], begin: int, end: int) -> int:
    first, last = (bisect_left(calls, row, key=lambda call: call.row) for row in (begin, end))
    return sum(call.num_bytes for call in calls[first:last] if call.op == "all_reduce")


def _forward_places(trace: Trace, rank: int, passes: Sequence[_Pass]) -> list[Line]:
    """Return the lines whose backward operators reduce: those of the forward pass."""
    calls = trace.observations[rank].calls
    first = passes[0].begin
    places = [call.place for call in calls if call.row >= first.row and call.phase == "backward" and call.place.file]
    return [place for place in dict.fromkeys(places[:4]) if place != first.place]


def _reducing_ns(trace: Trace, timeline: Timeline, rank: int) -> float:
    """Return how long the rank waits in a step for collectives of the axis on which it reduces gradients."""
    communication = timeline.breakdown(rank).communication
    return float(max(communication.values(), default=0))
