"""Micro-batches: a framework that divides the loss by their number must get as many of them per update, and make it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, ScriptEvent, Trace

__all__ = ["micro_batches_miscounted", "step_beside_engine"]


def micro_batches_miscounted(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report scripts that tell a framework to accumulate gradients, and do not do it or do it once more."""
    for ranks, sightings in seen_together(trace, _too_few):
        yield Finding(
            rule="micro-batches-miscounted",
            severity=Severity.WARNING,
            message="Accelerate divides the loss by gradient_accumulation_steps, so each update must use the gradients "
            "of as many micro-batches, but the script updates before that: gradients are too small",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="put forward pass, backward pass and update into `with accelerator.accumulate(model):`, which skips "
            "the update until all micro-batches are there",
        )
    for ranks, sightings in seen_together(trace, _counted_twice):
        yield Finding(
            rule="micro-batches-miscounted",
            severity=Severity.WARNING,
            message="DeepSpeed's engine counts the calls of its step() and updates once per "
            "gradient_accumulation_steps of them, but the script calls it once per as many micro-batches, too",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call engine.step() after each engine.backward(): the engine knows when to update",
        )


def step_beside_engine(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report optimizers that the script steps itself though DeepSpeed's engine updates their parameters."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        engine = list(observed.of_kind(EventKind.ENGINE_STEP))
        holders = {number for event in engine for number in event.facts["holders"]}
        places = {event.place for event in engine}
        for event in observed.of_kind(EventKind.OPTIMIZER_STEP):
            if event.subject in holders and event.place not in places:
                yield (
                    Sighting(text="steps an optimizer of its own", place=event.place),
                    Sighting(text="steps the engine, which updates the same parameters", place=engine[0].place),
                )
                return

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="step-beside-engine",
            severity=Severity.ERROR,
            message="DeepSpeed's engine must be the only one that updates its model, but the script steps another "
            "optimizer with the same parameters: what that changes is lost or comes twice, and zero_grad takes "
            "gradients from the engine",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="give the optimizer to deepspeed.initialize(optimizer=...), and call engine.step() only",
        )


def _too_few(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    backward, updates, counts = _windows(observed, "Accelerate", EventKind.OPTIMIZER_STEP)
    if len(counts) > 1 and max(counts) < backward[0].facts["num_micro_batches"]:
        yield _sightings(backward, updates, max(counts), "updates")


def _counted_twice(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    backward, steps, counts = _windows(observed, "DeepSpeed", EventKind.ENGINE_STEP)
    if len(counts) > 1 and set(counts) == {backward[0].facts["num_micro_batches"]} != {1}:
        yield _sightings(backward, steps, counts[0], "calls engine.step()")


def _sightings(
    backward: Sequence[ScriptEvent], ends: Sequence[ScriptEvent], count: int, what: str
) -> tuple[Sighting, ...]:
    facts = backward[0].facts
    text = f"asks {facts['framework']} for a backward pass, which divides by {facts['num_micro_batches']}"
    times = "micro-batch" if count == 1 else "micro-batches"
    return (
        Sighting(text=text, place=backward[0].place),
        Sighting(text=f"{what} after {count} {times}", place=ends[0].place),
    )


def _windows(
    observed: Observations, framework: str, end: EventKind
) -> tuple[list[ScriptEvent], list[ScriptEvent], list[int]]:
    """Return the backward passes asked of a framework, what ends each update, and how many passes come before each.

    There are none if the framework, or a library, counts by itself.
    """
    backward: list[ScriptEvent] = []
    ends: list[ScriptEvent] = []
    counts: list[int] = []
    count = 0
    for event in observed.of_kind(EventKind.FRAMEWORK_BACKWARD, end):
        if event.kind is end and count:
            ends.append(event)
            counts.append(count)
            count = 0
        elif event.kind is EventKind.FRAMEWORK_BACKWARD and event.facts["framework"] == framework:
            if event.facts["is_counted"]:
                return [], [], []
            backward.append(event)
            count += 1
    return backward, ends, counts
