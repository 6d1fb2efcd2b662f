"""Incomplete captures: what was left out, and what that means for the figures."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import Trace

__all__ = ["not_captured", "unsure_classes"]


def unsure_classes(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report ranks whose classes are a guess, because the sampled members differed."""
    for note in trace.notes:
        if note.kind == "unsure classes":
            yield Finding(
                rule="unsure-classes",
                severity=Severity.WARNING,
                message=note.text,
                ranks=tuple(rank_class.representative for rank_class in trace.classes),
                remedy="capture every rank with --ranks all",
            )


def not_captured(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report a run without step time because only some of its ranks were captured."""
    captured = sum(rank_class.size for rank_class in trace.classes)
    if timeline is None and 0 < captured < trace.world_size:
        yield Finding(
            rule="ranks-not-captured",
            severity=Severity.NOTE,
            message=f"the step time needs the work of all {trace.world_size:,} ranks, but the capture has only "
            f"{captured:,}, so it was not computed",
            ranks=trace.captured_ranks,
            remedy="capture the run with --ranks auto or --ranks all",
        )
