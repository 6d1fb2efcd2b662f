"""Incomplete captures: what was left out, and what that means for the figures."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import Trace

__all__ = ["fewer_steps", "not_captured", "unsure_classes"]


def fewer_steps(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report ranks that made fewer optimizer steps than were to be captured."""
    remedy = "let the script run longer, or raise --max-operators if that is what stopped it"
    return _noted(trace, "fewer steps", Severity.NOTE, remedy)


def unsure_classes(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report ranks whose classes are a guess, because the sampled members differed."""
    return _noted(trace, "unsure classes", Severity.WARNING, "capture every rank with --ranks all")


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


def _noted(trace: Trace, kind: str, severity: Severity, remedy: str) -> Iterator[Finding]:
    """Yield a finding for each note of this kind that the capture left."""
    ranks = tuple(rank_class.representative for rank_class in trace.classes)
    for note in trace.notes:
        if note.kind == kind:
            rule = kind.replace(" ", "-")
            yield Finding(rule=rule, severity=severity, message=note.text, ranks=ranks, remedy=remedy)
