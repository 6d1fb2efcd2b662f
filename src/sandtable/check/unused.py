"""Unused parameters: DDP told to look for them, where there are none."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, ScriptEvent, Trace

__all__ = ["needless_find_unused_parameters"]


def needless_find_unused_parameters(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report DDP modules that look for unused parameters in every step and have not found any on any rank."""
    wrapped: dict[Line, list[tuple[int, ScriptEvent]]] = {}
    used: set[Line] = set()
    for rank, seen in trace.observations.items():
        unused = {event.subject: event.facts["num_unused"] for event in seen.of_kind(EventKind.UNUSED_PARAMETERS)}
        for event in seen.of_kind(EventKind.WRAPPED):
            key = event.place
            if event.facts.get("finds_unused"):
                wrapped.setdefault(key, []).append((rank, event))
                if unused.get(event.subject, 1) > 0:
                    used.add(key)
    for key, makers in wrapped.items():
        if key not in used:
            ranks = tuple(rank for rank, _ in makers)
            yield Finding(
                rule="needless-find-unused-parameters",
                severity=Severity.NOTE,
                message="find_unused_parameters=True makes DDP walk the whole graph and reduce a map of what was used "
                f"in every step, but all parameters were used in all {trace.num_steps} steps on all ranks",
                ranks=ranks,
                evidence=(at_line(ranks, "wraps the model", key),),
                remedy="remove find_unused_parameters=True, unless later batches skip a part of the model",
            )
