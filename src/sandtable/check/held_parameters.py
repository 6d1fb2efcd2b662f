"""Held parameters: whatever gets a gradient must be held by an optimizer, and what an optimizer holds must get one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sandtable.check.sightings import Sighting, evidence_of, names_of, places_where_made, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, Observations, ScriptEvent, Trace

__all__ = ["parameters_not_optimized", "parameters_without_gradient", "stale_parameters"]


def stale_parameters(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report optimizers whose tensors never get a gradient, while parameters that get one are held by none."""
    for ranks, sightings in seen_together(trace, _stale):
        yield Finding(
            rule="stale-parameters",
            severity=Severity.ERROR,
            message="an optimizer must hold the parameters that the model computes with, but this one holds tensors "
            "from before the model was replaced, sharded or moved, so its steps change nothing",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="make the optimizer last, from model.parameters() of the wrapped and moved model",
        )


def parameters_not_optimized(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report parameters that get gradients, that no optimizer holds, and that nobody changes."""
    for ranks, sightings in seen_together(trace, _not_optimized):
        yield Finding(
            rule="parameters-not-optimized",
            severity=Severity.WARNING,
            message="a parameter that gets gradients must be held by an optimizer, but these are held by none, so they "
            "keep their first values",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="give them to the optimizer (optimizer.add_param_group), or freeze them with requires_grad_(False)",
        )


def parameters_without_gradient(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report parameters that an optimizer holds and a forward pass uses, but that no gradient comes back to."""
    message = "a parameter that an optimizer holds must get a gradient to be trained, but "
    for ranks, sightings in seen_together(trace, _cut_losses):
        yield Finding(
            rule="parameters-without-gradient",
            severity=Severity.ERROR,
            message=f"{message}this loss has no graph, so its backward pass reaches no parameter at all",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="compute the loss from the tensors that the model returned: loss.item(), torch.tensor(...) and "
            ".data leave the graph behind",
        )
    for ranks, sightings in seen_together(trace, _cut_parameters):
        yield Finding(
            rule="parameters-without-gradient",
            severity=Severity.NOTE,  # (a teacher or a frozen part may be held by an optimizer, too, and is in order)
            message=f"{message}these never do, because the forward pass uses them under no_grad",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="remove no_grad() there; or, if they are meant to stay as they are, freeze them with "
            "requires_grad_(False) and leave them out of the optimizer",
        )


def _cut_losses(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    steps = [step for steps in _steps(observed).values() for step in steps]
    passes = list(observed.of_kind(EventKind.BACKWARD))
    is_cut = bool(passes) and all(one.facts.get("is_cut", False) for one in passes)
    if is_cut and steps and not any(step.facts["num_gradients"] for step in steps):
        yield (
            Sighting(text="runs a backward pass that begins at a tensor without a graph", place=passes[0].place),
            Sighting(text="updates without gradients", place=steps[0].place),
        )


def _cut_parameters(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    made = places_where_made(observed)
    changed = _changed(observed)
    for optimizer, steps in _steps(observed).items():
        if len(steps) < 2 or not any(step.facts["num_gradients"] for step in steps):
            continue
        never = set.intersection(*({index for index, *_ in step.facts["unrecorded"]} for step in steps)) - changed
        places: dict[Line, list[int]] = defaultdict(list)
        for index, file, line in steps[-1].facts["unrecorded"]:
            if index in never and line:
                places[Line(file, line)].append(index)
        for place, parameters in places.items():
            yield (
                Sighting(text=f"computes under no_grad with {names_of(observed, parameters)}", place=place),
                Sighting(text="makes the optimizer with them", place=made.get(optimizer, Line())),
            )


def _stale(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    made = places_where_made(observed)
    for optimizer, steps in _steps(observed).items():
        unheld = set.intersection(*(set(step.facts["unheld"]) for step in steps))
        if not unheld or _frozen(observed, optimizer) or not all(_is_idle(step) for step in steps):
            continue
        yield (
            Sighting(text="makes the optimizer", place=made.get(optimizer, Line())),
            *(Sighting(text=text, place=place) for text, place in _replacements(observed, optimizer)),
            Sighting(
                text=f"updates without {names_of(observed, sorted(unheld))}, which get gradients",
                place=steps[0].place,
            ),
        )


def _is_idle(step: ScriptEvent) -> bool:
    """Return whether an update had tensors that no module has and that have no gradient, or no gradient at all."""
    return step.facts["idle_foreign"] > 0 or not (step.facts["num_gradients"] or step.facts["foreign"])


def _not_optimized(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    steps = [step for steps in _steps(observed).values() for step in steps]
    idle = [step for step in steps if _is_idle(step) and not _frozen(observed, step.subject)]
    if not steps or idle or any(step.facts["foreign"] for step in steps):
        return
    unheld = set.intersection(*(set(step.facts["unheld"]) for step in steps)) - _changed(observed)
    if not unheld:
        return
    numbers = {step.subject for step in steps}
    optimizers = (
        Sighting(text="makes an optimizer without them", place=place)
        for number, place in places_where_made(observed).items()
        if number in numbers
    )
    frozen = (
        Sighting(text=f"gives it only {names_of(observed, held)}, which are frozen", place=place)
        for number, place in places_where_made(observed).items()
        if number in numbers and (held := _frozen(observed, number))
    )
    names = names_of(observed, sorted(unheld))
    backward = next(observed.of_kind(EventKind.BACKWARD), None)
    computing = (Sighting(text=f"computes gradients of {names}", place=backward.place),) if backward else ()
    yield (*optimizers, *frozen, *computing, Sighting(text="updates other parameters only", place=steps[0].place))


def _frozen(observed: Observations, optimizer: int) -> tuple[int, ...]:
    """Return the parameters that an optimizer holds if all of them are the model's and need no gradient."""
    held = next((one.parameters for one in observed.optimizers if one.optimizer == optimizer), ())
    is_frozen = all(number >= 0 and not observed.parameters[number].requires_grad for number in held)
    return held if is_frozen else ()


def _changed(observed: Observations) -> set[int]:
    """Return the parameters that changed between the first update and the last, or of which nothing is known."""
    taken = [shot.identities for shot in observed.snapshots if shot.of == "parameters"]
    if len(taken) < 2:
        return set(range(len(observed.parameters)))
    return {
        index
        for index, (first, last) in enumerate(zip(taken[0], taken[-1], strict=True))
        if first != last or first == 0
    }


def _replacements(observed: Observations, optimizer: int) -> Iterator[tuple[str, Line]]:
    """Yield what the script did after it made the optimizer that gave the model new parameters."""
    is_after = False
    for event in observed.events:
        is_after = is_after or (event.kind is EventKind.OPTIMIZER_MADE and event.subject == optimizer)
        if is_after and event.kind is EventKind.REPLACED:
            yield f"gives the model new parameters ({event.facts['how']})", event.place
        if event.kind is EventKind.OPTIMIZER_STEP:
            return


def _steps(observed: Observations) -> dict[int, list[ScriptEvent]]:
    """Return the steps of each optimizer at which was noted who holds what."""
    steps: dict[int, list[ScriptEvent]] = {}
    for event in observed.of_kind(EventKind.OPTIMIZER_STEP):
        if "unheld" in event.facts:
            steps.setdefault(event.subject, []).append(event)
    return steps
