"""Passes that DDP does not see: their gradients stay on their rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sandtable.check.sightings import Sighting, evidence_of, is_equal_everywhere, names_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, Observations, ScriptEvent, Trace

__all__ = ["forward_around_wrapper", "no_sync_around_backward", "synchronization_lost"]


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A DDP wrapper of one rank, and the events that concern it, in order."""

    place: Line
    group: tuple[int, ...]
    events: tuple[ScriptEvent, ...]

    @property
    def passes(self) -> Iterator[tuple[ScriptEvent, ScriptEvent | None]]:
        """Yield backward passes that wrote gradients of the module, with the forward pass that DDP saw before."""
        forward = None
        for event in self.events:
            if event.kind is EventKind.FORWARD and event.facts["wrapper"] != "inside":
                forward = event
            elif event.kind is EventKind.WRAPPER_BACKWARD and event.facts.get("wrote"):
                yield event, forward if event.facts["has_seen_forward"] else None
                forward = None


def forward_around_wrapper(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report optimizer steps with gradients of a pass that went around DDP, and that differ between ranks."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for wrapper in _wrappers(observed):
            step = _step_after_a_pass_around(observed, wrapper)
            if step is None or not _gradients_differ(trace, observed, wrapper, update=step[1]):
                continue
            backward, update = step
            inside = next((event for event in wrapper.events if event.facts.get("wrapper") == "inside"), None)
            if inside is not None:
                place = Line(inside.facts["file"], inside.facts["line"])
                yield (
                    Sighting(text="calls the module inside DDP, not DDP", place=place),
                    Sighting(text="computes gradients that DDP does not average", place=backward.place),
                    Sighting(text="updates with them", place=update.place),
                )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="forward-around-wrapper",
            severity=Severity.ERROR,
            message="a forward pass must go through DDP for its gradients to be averaged, but this one goes around it, "
            "so each rank updates its replica with gradients of its own",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call the wrapped model, model(inputs), and keep model.module for saving; "
            "if another method than forward is needed, let forward call it",
        )


def synchronization_lost(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report models whose parameters were replaced under DDP, which no longer hears of their gradients."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for wrapper in _wrappers(observed):
            forwards = [event for event in wrapper.events if event.facts.get("unhooked")]
            if not forwards or not _gradients_differ(trace, observed, wrapper):
                continue
            moves = [event for event in wrapper.events if event.kind is EventKind.MOVED]
            names = names_of(observed, forwards[-1].facts["unhooked"])
            yield (
                Sighting(text="wraps the model with DDP", place=wrapper.place),
                *(Sighting(text=f"moves it with {event.facts['how']}", place=event.place) for event in moves[:4]),
                Sighting(text=f"trains, but DDP no longer averages {names or 'it'}", place=forwards[0].place),
            )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="synchronization-lost",
            severity=Severity.ERROR,
            message="a model must stay where it was when DDP wrapped it, but it was moved to another device or type, "
            "and DDP no longer averages its gradients",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="wrap the model again, model = DistributedDataParallel(model.module), after it is back on the GPU",
        )


def no_sync_around_backward(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report backward passes under `no_sync` whose forward pass was outside, so that gradients are reduced anyway."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for wrapper in _wrappers(observed):
            for backward, forward in wrapper.passes:
                if forward is not None and forward.facts["syncs"] and not backward.facts["syncs"]:
                    yield (
                        Sighting(text="runs the forward pass outside of no_sync", place=forward.place),
                        Sighting(text="runs the backward pass inside of it", place=backward.place),
                    )
                    break

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="no-sync-around-backward",
            severity=Severity.WARNING,
            message="no_sync must be around the forward pass, too, but here only the backward pass is inside, "
            "so DDP all-reduces the gradients of every micro-batch",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="write `with model.no_sync():` around forward and backward of all micro-batches but the last",
        )


def _wrappers(observed: Observations) -> Iterator[_Wrapper]:
    for event in observed.of_kind(EventKind.WRAPPED):
        number, group = event.facts.get("number"), tuple(event.facts.get("group", ()))
        if number is not None and len(group) > 1:
            kinds = (EventKind.FORWARD, EventKind.WRAPPER_BACKWARD, EventKind.MOVED)
            events = tuple(each for each in observed.of_kind(*kinds) if each.subject == number)
            yield _Wrapper(event.place, group, events)


def _step_after_a_pass_around(observed: Observations, wrapper: _Wrapper) -> tuple[ScriptEvent, ScriptEvent] | None:
    """Return the last backward pass before an optimizer step, and the step, if DDP has not seen its forward pass."""
    seen = {backward.row: forward for backward, forward in wrapper.passes}
    last: ScriptEvent | None = None
    for event in observed.of_kind(EventKind.WRAPPER_BACKWARD, EventKind.OPTIMIZER_STEP):
        if event.kind is EventKind.OPTIMIZER_STEP:
            if last is None or event.subject not in last.facts["optimizers"]:
                continue  # (of another model: a GAN's critic has gradients, too, when the generator is updated)
            if seen[last.row] is None and last.facts["syncs"]:
                return last, event
            last = None
        elif event in wrapper.events and event.row in seen:
            last = event
    return None


def _gradients_differ(
    trace: Trace, observed: Observations, wrapper: _Wrapper, *, update: ScriptEvent | None = None
) -> bool:
    """Return whether some gradient of this update, or else of the last, differs between ranks of the group."""
    rows = [shot.row for shot in observed.snapshots if shot.of == "gradients"]
    number = -1 if update is None else next((index for index, row in enumerate(rows) if row >= update.row), -1)
    held = [tensors for tensors in observed.optimizers if update is None or tensors.optimizer == update.subject]
    return any(
        is_equal_everywhere(
            trace, wrapper.group, of="gradients", number=number, parameter=observed.parameters[index].name
        )
        is False
        for tensors in held
        for index in tensors.parameters
        if index >= 0
    )
