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
    for optimizer, steps in _steps(observed).items():
        for step in steps:
            clearing = _last(observed, EventKind.ZERO_GRAD, step)
            backward = _last(observed, EventKind.BACKWARD_END, step)
            if backward is None or any(event is step for event in _after_optimizer(observed, backward, optimizer)):
                continue
            is_cleared_by_call = (
                clearing is not None
                and clearing.facts["of"] == "optimizer"
                and clearing.subject == optimizer
                and _is_before(observed, backward, clearing)
            )
            lost = step.facts.get("lost") and not step.facts.get("num_gradients")
            if is_cleared_by_call or lost:
                sightings = [Sighting(text="computes gradients", place=backward.place)]
                if clearing is not None and _is_before(observed, backward, clearing):
                    sightings.append(Sighting(text="clears them", place=clearing.place))
                yield (*sightings, Sighting(text="updates without them", place=step.place))
                break


def _cleared_between_passes(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    for optimizer, steps in _steps(observed).items():
        wasteful = [step for step in steps if step.facts.get("discarded")]
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


def _after_optimizer(observed: Observations, backward: ScriptEvent, optimizer: int) -> Iterator[ScriptEvent]:
    """Yield the steps of the optimizer behind the first one after this backward pass: they use nothing of it."""
    is_behind, num_steps = False, 0
    for event in observed.events:
        is_behind = is_behind or event is backward
        if is_behind and event.kind is EventKind.OPTIMIZER_STEP and event.subject == optimizer:
            num_steps += 1
            if num_steps > 1:
                yield event
