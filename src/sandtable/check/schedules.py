"""Schedules: a scheduler steps after its optimizer, and as often as its schedule was told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, ScriptEvent, Trace

__all__ = ["scheduler_before_optimizer", "scheduler_too_fast"]


def scheduler_before_optimizer(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report schedulers that step before the first update, so that the first learning rate is never used."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for history in _histories(observed):
            scheduler, update = history[0], next((e for e in history if e.kind is EventKind.OPTIMIZER_STEP), None)
            is_per_micro_batch = any(count > 1 for count in _steps_per_update(history))
            if scheduler.kind is EventKind.SCHEDULER_STEP and update is not None and not is_per_micro_batch:
                yield (
                    Sighting(text=f"steps {scheduler.facts['name']}", place=scheduler.place),
                    Sighting(text="updates for the first time", place=update.place),
                )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="scheduler-before-optimizer",
            severity=Severity.WARNING,
            message="a scheduler must step after the optimizer, but here it steps before the first update, so the "
            "first learning rate of the schedule is skipped",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call scheduler.step() after optimizer.step()",
        )


def scheduler_too_fast(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report schedulers that step several times per update."""
    for severity, must in ((Severity.WARNING, True), (Severity.NOTE, False)):

        def look(observed: Observations, must: bool = must) -> Iterator[tuple[Sighting, ...]]:
            for history in _histories(observed):
                counts = _steps_per_update(history)
                if len(counts) < 2 or min(counts) < 2 or must is not _is_in_a_row(history):
                    continue
                scheduler = next(event for event in history if event.kind is EventKind.SCHEDULER_STEP)
                update = next(event for event in history if event.kind is EventKind.OPTIMIZER_STEP)
                text = f"steps {scheduler.facts['name']} {min(counts)} times per update"
                if horizon := scheduler.facts["horizon"]:
                    text += f": its schedule of {horizon:,} steps is over after {horizon // min(counts):,} updates"
                yield Sighting(text=text, place=scheduler.place), Sighting(text="updates", place=update.place)

        for ranks, sightings in seen_together(trace, look):
            yield Finding(
                rule="scheduler-too-fast",
                severity=severity,
                message="a scheduler should step once per update, but this one steps several times, so the learning "
                "rate follows its schedule as many times too fast unless the schedule counts these steps",
                ranks=ranks,
                evidence=evidence_of(ranks, sightings),
                remedy="call scheduler.step() once after each optimizer.step(); with Accelerate, which steps it once "
                "per process, give the schedule num_processes times as many steps, or do not prepare the scheduler",
            )


def _histories(observed: Observations) -> Iterator[list[ScriptEvent]]:
    """Yield per scheduler its own steps, those of its optimizer, and backward passes, in order."""
    schedulers = {
        event.subject: event.facts["optimizer"]
        for event in observed.of_kind(EventKind.SCHEDULER_STEP)
        if not event.facts["is_initial"]
    }
    kinds = (EventKind.SCHEDULER_STEP, EventKind.OPTIMIZER_STEP, EventKind.BACKWARD)
    for scheduler, optimizer in schedulers.items():
        events = [
            event
            for event in observed.of_kind(*kinds)
            if event.kind is EventKind.BACKWARD
            or (
                event.subject == scheduler and not event.facts["is_initial"]
                if event.kind is EventKind.SCHEDULER_STEP
                else event.subject == optimizer
            )
        ]
        first = next(index for index, event in enumerate(events) if event.kind is not EventKind.BACKWARD)
        yield events[first:]


def _steps_per_update(history: list[ScriptEvent]) -> list[int]:
    """Return how often the scheduler stepped between one update and the next, as far as both were seen."""
    counts: list[int] = []
    for event in history:
        if event.kind is EventKind.OPTIMIZER_STEP:
            counts.append(0)
        elif event.kind is EventKind.SCHEDULER_STEP and counts:
            counts[-1] += 1
    return counts[:-1]


def _is_in_a_row(history: list[ScriptEvent]) -> bool:
    """Return whether the scheduler steps several times with nothing between, not once per micro-batch."""
    runs = (len(list(run)) for kind, run in groupby(history, lambda event: event.kind) if kind == "scheduler step")
    return max(runs) > 1
