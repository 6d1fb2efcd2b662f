"""Recomputation: activations that are computed again, though the card has room to keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from sandtable.check.cost import cost_text
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import Kind, Line, Phase, RankView, Trace
from sandtable.units import format_bytes

__all__ = ["needless_recompute"]

_WORTH_A_WORD = 0.05
_ROOM = 0.8
"""The share of a card's memory that may be in use for sure."""


def needless_recompute(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report recomputation of activations that all fit at once, on every rank."""
    if timeline is None:
        return
    most, needed, room = 0, 0, 0
    for row in trace.classes:
        view = trace.rank(row.representative)
        own = _recomputed_bytes(view, timeline.step_number)
        free = int(_ROOM * view.memory.capacity_bytes) - view.memory.reserved_bytes
        if own > free:
            return
        if own >= needed:
            needed, room = own, free
        most = max(most, timeline.breakdown(row.representative).recompute)
    if most < _WORTH_A_WORD * timeline.step_ns or not needed:
        return
    ranks = tuple(rank for row in trace.classes for rank in row.ranks)
    yield Finding(
        rule="needless-recompute",
        severity=Severity.NOTE,
        message="activations should be computed again only if they do not fit, but at most "
        f"{format_bytes(needed)} more would be needed where {format_bytes(room)} are free, and recomputing takes "
        f"{cost_text(timeline, most)}",
        ranks=ranks,
        evidence=(*_checkpoints(trace, ranks), *_evidence(trace.rank(ranks[0]), timeline.step_number)),
        remedy="remove activation checkpointing, or apply it to some of the layers only; or use the room for larger "
        "micro-batches",
    )


def _recomputed_bytes(view: RankView, step: int) -> int:
    """Return the bytes that a step allocates while it recomputes: at least what keeping the activations would take."""
    records, span = view.records, view.step_slice(step)
    kind = records.kind[span]
    work = np.flatnonzero((kind == Kind.OPERATOR) | (kind == Kind.COLLECTIVE))
    allocations = np.flatnonzero(kind == Kind.ALLOC)
    if not len(work) or not len(allocations):
        return 0
    # Memory is allocated just before the operator that needs it is recorded.
    following = work[np.minimum(np.searchsorted(work, allocations), len(work) - 1)]
    recomputing = records.phase[span][following] == Phase.RECOMPUTE
    return int(records.value[span][allocations[recomputing]].sum())


def _checkpoints(trace: Trace, ranks: tuple[int, ...]) -> Iterator[Evidence]:
    """Yield the lines that checkpoint a part of the model."""
    places: Counter[Line] = Counter()
    for seen in trace.observations.values():
        for call in seen.checkpointed_calls:
            places[call.place] = max(places[call.place], call.count)
    for place, count in places.most_common(4):
        text = f"checkpoint {count} parts of the model in {trace.num_steps} steps"
        yield Evidence(ranks=ranks, text=text, file=place.file, line=place.line)


def _evidence(view: RankView, step: int) -> Iterator[Evidence]:
    """Yield the lines that run most operators again."""
    records, span = view.records, view.step_slice(step)
    again = (records.kind[span] == Kind.OPERATOR) & (records.phase[span] == Phase.RECOMPUTE)
    for line, count in Counter(records.line[span][again].tolist()).most_common(3):
        place = view.line(line)
        text = f"run {count} operators again per step"
        yield Evidence(ranks=view.rank_class.ranks, text=text, file=place.file, line=place.line)
