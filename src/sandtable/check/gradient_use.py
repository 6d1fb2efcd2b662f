"""Gradients and updates: each update must use the gradients of its own backward passes, all of them and no others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from sandtable.check.sightings import Sighting, evidence_of, names_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, ScriptEvent, Trace

__all__ = ["gradients_discarded", "missing_zero_grad"]


def missing_zero_grad(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report updates with gradients that still hold those of the update before."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for _optimizer, steps in _steps(observed).items():
            for previous, step in itertools.pairwise(steps):
                carried = step.facts.get("carried")
                if carried:
                    backward = _last(observed, EventKind.BACKWARD, step)
                    yield (
                        Sighting(text="updates with gradients", place=previous.place),
                        Sighting(
                            text=f"adds the next ones to them: {names_of(observed, carried)}",
                            place=backward.place if backward else step.place,
                        ),
                    )
                    break

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="missing-zero-grad",
            severity=Severity.ERROR,
            message="gradients must be cleared between two updates, but nothing does, so each update repeats those "
            "of all earlier ones",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call optimizer.zero_grad() once per update: before its first backward pass, or after step()",
        )


def gradients_discarded(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that are cleared before an update has used them."""
    for ranks, sightings in seen_together(trace, _cleared_before_the_update):
        yield Finding(
            rule="gradients-discarded",
            severity=Severity.ERROR,
            message="gradients must be there when the optimizer steps, but they are cleared between the backward pass "
            "and the update, so the model does not learn",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call optimizer.zero_grad() before backward() or after step(), never between them",
        )
    for ranks, sightings in seen_together(trace, _cleared_between_passes):
        yield Finding(
            rule="gradients-discarded",
            severity=Severity.WARNING,
            message="gradients of all micro-batches must be there when the optimizer steps, but they are cleared after "
            "each, so only the last one counts",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call optimizer.zero_grad() once per update, outside of the loop over micro-batches",
        )


def _cleared_before_the_update(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    for steps in _steps(observed).values():
        for step in steps:
            backward = _last(observed, EventKind.BACKWARD_END, step)
            if backward is None or not (_are_zeros(step) or _are_lost(observed, step)):
                continue
            clearing = _last(observed, EventKind.ZERO_GRAD, step)
            if clearing is None or not _is_before(observed, backward, clearing):
                continue  # (a library that keeps gradients elsewhere may take them, too)
            yield (
                Sighting(text="computes gradients", place=backward.place),
                Sighting(text="clears them", place=clearing.place),
                Sighting(text="updates without them", place=step.place),
            )
            break


def _are_zeros(step: ScriptEvent) -> bool:
    """Return whether `zero_grad` is the last that happened to all gradients of an update."""
    zeroed = step.facts.get("zeroed", ())
    return bool(zeroed) and len(zeroed) == step.facts["num_gradients"]


def _are_lost(observed: Observations, step: ScriptEvent) -> bool:
    """Return whether gradients were written that are gone at the update, which then changes nothing."""
    lost = step.facts.get("lost")
    if not lost or step.facts["num_gradients"]:
        return False
    taken = [shot for shot in observed.snapshots if shot.of == "parameters"]
    before = [shot for shot in taken if shot.row <= step.row]
    behind = [shot for shot in taken if shot.row > step.row]
    return bool(before and behind) and all(
        before[-1].identities[index] == behind[0].identities[index] != 0 for index in lost
    )


def _cleared_between_passes(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    for optimizer, steps in _steps(observed).items():
        wasteful = [
            step
            for step in steps
            if step.facts.get("discarded") and (not step.facts["num_changed"] or _is_clipped(observed, step))
        ]
        others = {event.subject for event in observed.of_kind(EventKind.OPTIMIZER_STEP)} - {optimizer}
        known = steps[1:]
        if others or not wasteful or len(wasteful) < len(known):
            continue
        backward = _last(observed, EventKind.BACKWARD, wasteful[0])
        clearing = _last(observed, EventKind.ZERO_GRAD, wasteful[0])
        if backward is not None:
            names = names_of(observed, wasteful[0].facts["discarded"])
            cleared = (Sighting(text="clears them", place=clearing.place),) if clearing is not None else ()
            yield (
                Sighting(text=f"computes gradients of {names} several times per update", place=backward.place),
                *cleared,
                Sighting(text="updates with the last ones", place=wasteful[0].place),
            )


def _is_clipped(observed: Observations, step: ScriptEvent) -> bool:
    """Return whether it was clipping or unscaling that changed the gradients of an update since they were computed."""
    backward = _last(observed, EventKind.BACKWARD_END, step)
    changes = (_last(observed, kind, step) for kind in (EventKind.CLIP, EventKind.SCALER_STEP))
    return backward is not None and any(
        change is not None and _is_before(observed, backward, change) for change in changes
    )


def _steps(observed: Observations) -> dict[int, list[ScriptEvent]]:
    steps: dict[int, list[ScriptEvent]] = {}
    for event in observed.of_kind(EventKind.OPTIMIZER_STEP):
        steps.setdefault(event.subject, []).append(event)
    return steps


def _last(observed: Observations, kind: EventKind, before: ScriptEvent) -> ScriptEvent | None:
    """Return the last event of a kind before another."""
    last = None
    for event in observed.events:
        if event is before:
            return last
        if event.kind is kind:
            last = event
    return None


def _is_before(observed: Observations, first: ScriptEvent, second: ScriptEvent) -> bool:
    return next(event is first for event in observed.events if event is first or event is second)
