"""Steps: a run must have some on the GPU, as many as were to be captured, and equal ones, or the user must know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import NO_STEPS, SKIPPED_UPDATES, Kind, RankView, Trace, progress_of
from sandtable.units import format_seconds

__all__ = ["fewer_steps", "no_gpu_work", "no_steps", "unequal_steps"]

_FEWER = "fewer steps"
"""The note of the launcher about a rank that made fewer steps than were to be captured."""

_UNEQUAL = 1.1
"""How many times as long as the fastest step the slowest must take to be worth a word."""


def no_steps(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report a run that ended no step, and what it did instead."""
    if not _is_without_steps(trace):
        return
    texts = {
        kind: [note.text for note in trace.notes if note.kind == kind] for kind in (_FEWER, SKIPPED_UPDATES, NO_STEPS)
    }
    seen = [*texts[_FEWER][:1], *texts[SKIPPED_UPDATES], *texts[NO_STEPS]]
    evidence = (
        Evidence(
            ranks=(row.rank,),
            text=f"stopped after {row.num_operators:,} operators: {row.stop_reason}",
            file=row.file,
            line=row.line,
        )
        for row in progress_of(trace)
    )
    yield Finding(
        rule="no-steps",
        severity=Severity.ERROR,
        message="a run must end a step for its step time to be known, but " + ("; ".join(seen) or "none ended"),
        ranks=tuple(row.representative for row in trace.classes),
        evidence=tuple(evidence),
        remedy="let the script update parameters on the GPU at least once; if it does, but is not recognized to, mark "
        "the end of its steps with sandtable.step() or --step-marker module:function",
    )


def no_gpu_work(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report a run whose steps did nothing on the GPU."""
    is_whole = sum(row.size for row in trace.classes) == trace.world_size
    if timeline is not None or not is_whole or trace.num_steps == 0:
        return
    if not any((row.records.records.kind == Kind.OPERATOR).any() for row in trace.classes):
        yield Finding(
            rule="no-gpu-work",
            severity=Severity.ERROR,
            message="a run must use the GPU for its step time to be known, but all of its steps "
            f"({trace.num_steps:,}) ran on the CPU",
            ranks=tuple(row.representative for row in trace.classes),
            remedy="move the model and its inputs to the GPU: model.cuda(), batch.cuda()",
        )


def fewer_steps(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report ranks that made fewer steps than were to be captured."""
    if _is_without_steps(trace):
        return
    skipped = [note.text for note in trace.notes if note.kind == SKIPPED_UPDATES]
    for note in trace.notes:
        if note.kind == _FEWER:
            yield Finding(
                rule="fewer-steps",
                severity=Severity.NOTE,
                message="; ".join([note.text, *skipped]),
                ranks=tuple(row.representative for row in trace.classes),
                remedy="let the script run longer, or raise --max-operators if that is what stopped it",
            )


def unequal_steps(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report steps of very different duration, and on which line the slowest does more than the one described."""
    if timeline is None:
        return
    steps = timeline.steps
    durations = steps.durations_ns
    if durations.max() <= _UNEQUAL * durations.min():
        return
    slowest = steps.first_number + int(durations.argmax())
    fastest, longest = (format_seconds(int(ns) / 1e9) for ns in (durations.min(), durations.max()))
    yield Finding(
        rule="unequal-steps",
        severity=Severity.NOTE,
        message=f"steps {steps.first_number} to {steps.first_number + len(durations) - 1} take from {fastest} to "
        f"{longest}; the figures describe step {timeline.step_number}, which takes as long as the median",
        ranks=tuple(row.representative for row in trace.classes),
        evidence=tuple(_extra_work(trace.rank(0), slowest, timeline.step_number)),
        remedy="capture more steps with --steps to see how often the slow ones come",
    )


def _is_without_steps(trace: Trace) -> bool:
    """Return whether all ranks were captured, and none made a step."""
    return trace.num_steps == 0 and sum(row.size for row in trace.classes) == trace.world_size


def _extra_work(view: RankView, slowest: int, described: int) -> Iterator[Evidence]:
    """Yield the line on which the slowest step runs most operators more than the one described."""
    extra = _operators_by_line(view, slowest)
    extra.subtract(_operators_by_line(view, described))
    line, count = max(extra.items(), key=lambda item: item[1], default=(0, 0))
    if count > 0:
        place = view.line(line)
        text = f"runs {count:,} operators more in step {slowest} than in step {described}"
        yield Evidence(ranks=(view.rank,), text=text, file=place.file, line=place.line)


def _operators_by_line(view: RankView, step: int) -> Counter[int]:
    rows = view.step_slice(step)
    lines = view.records.line[rows][view.records.kind[rows] == Kind.OPERATOR]
    return Counter(dict(zip(*(column.tolist() for column in np.unique(lines, return_counts=True)), strict=True)))
