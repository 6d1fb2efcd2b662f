"""Clipping: gradients must be clipped after they are complete and unscaled, before the update, by one norm for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from sandtable.check.sightings import Sighting, evidence_of, is_equal_everywhere, names_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, ScriptEvent, Trace

__all__ = ["clip_before_unscale", "clip_by_local_norm", "clip_per_micro_batch", "clip_without_effect"]

_KINDS = (
    EventKind.BACKWARD_END,
    EventKind.CLIP,
    EventKind.UNSCALE,
    EventKind.SCALER_STEP,
    EventKind.OPTIMIZER_STEP,
    EventKind.ZERO_GRAD,
)


def clip_before_unscale(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that are clipped while a GradScaler still scales them."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for _optimizer, events in _histories(observed).items():
            clip, is_unscaled = None, False
            for event in events:
                match event.kind:
                    case EventKind.BACKWARD_END:
                        clip, is_unscaled = None, False
                    case EventKind.UNSCALE:
                        is_unscaled = True
                    case EventKind.CLIP if not is_unscaled and event.facts["limit"] > 0:
                        clip = event
                    case EventKind.SCALER_STEP if clip is not None and event.facts["is_enabled"]:
                        if event.facts["was_unscaled"] and not is_unscaled:
                            continue  # (by a scaler of its own, of which is not known when)
                        yield (
                            Sighting(text=_clipping(clip), place=clip.place),
                            Sighting(text="unscales them only in scaler.step", place=event.place),
                        )
                        break

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="clip-before-unscale",
            severity=Severity.ERROR,
            message="gradients must be unscaled before they are clipped, but here the limit is compared with gradients "
            "that GradScaler has multiplied by its scale (65,536 at first)",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call scaler.unscale_(optimizer) before clipping",
        )


def clip_without_effect(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that are clipped after the update that uses them, or before there are any."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for history in _histories(observed).values():
            clips = [event for event in history if event.kind is EventKind.CLIP and event.facts["limit"] > 0]
            updates = [event for event in history if event.kind is EventKind.OPTIMIZER_STEP]
            if not clips or len(updates) < 2 or any(_has_effect(history, clip) for clip in clips):
                continue
            yield (
                Sighting(text=_clipping(clips[0]), place=clips[0].place),
                Sighting(text="updates with gradients that are not clipped", place=updates[-1].place),
            )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="clip-without-effect",
            severity=Severity.WARNING,
            message="gradients must be clipped between the backward pass and the update, but here no update uses what "
            "was clipped",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="clip after loss.backward() and before optimizer.step()",
        )


def clip_per_micro_batch(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that are clipped before all micro-batches have been added."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for history in _histories(observed).values():
            clip: ScriptEvent | None = None
            added: ScriptEvent | None = None
            is_clipped_again = False
            for event in history:
                match event.kind:
                    case EventKind.CLIP if event.facts["limit"] > 0:
                        is_clipped_again = added is not None
                        clip = clip or event
                    case EventKind.BACKWARD_END if clip is not None:
                        added = event
                    case EventKind.ZERO_GRAD:
                        clip = added = None
                        is_clipped_again = False
                    case EventKind.OPTIMIZER_STEP:
                        if clip is not None and added is not None and is_clipped_again:
                            yield (
                                Sighting(text=_clipping(clip), place=clip.place),
                                Sighting(text="adds further gradients to them", place=added.place),
                                Sighting(text="updates with the sum", place=event.place),
                            )
                            break
                        clip = added = None
                        is_clipped_again = False

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="clip-per-micro-batch",
            severity=Severity.WARNING,
            message="gradients must be clipped once per update, when all micro-batches are in, but here a part of them "
            "is clipped and more is added",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="clip outside of the loop over micro-batches, directly before optimizer.step()",
        )


def clip_by_local_norm(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that each rank clips by the norm of its own part."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for clip in observed.of_kind(EventKind.CLIP):
            if clip.facts["how"] == "norm" and clip.facts["limit"] > 0 and clip.facts["num_flat_shards"]:
                text = f"{_clipping(clip)} by the norm of the shards that this rank holds"
                yield (Sighting(text=text, place=clip.place),)
                return
        names = _divided_by_clipping(trace, observed)
        clip_event = next((event for event in observed.of_kind(EventKind.CLIP) if event.facts["how"] == "norm"), None)
        if names and clip_event is not None:
            text = f"{_clipping(clip_event)}: {names} had one gradient on all ranks before, and has several afterwards"
            yield (Sighting(text=text, place=clip_event.place),)

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="clip-by-local-norm",
            severity=Severity.ERROR,
            message="gradients must be clipped by one norm, of all ranks' parts together, but here each rank clips by "
            "the norm of the part it holds, so parts of one model are scaled differently",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="with FSDP call model.clip_grad_norm_(max_norm); otherwise all-reduce the squares of the norms over "
            "the ranks that share the model before taking the root",
        )


def _divided_by_clipping(trace: Trace, observed: Observations) -> str:
    """Name the parameters whose gradients were equal on all ranks before they were clipped, and are not afterwards."""
    shots = [shot for shot in observed.snapshots if shot.of in ("gradients before clipping", "gradients")]
    pairs = [
        (first, second)
        for first, second in itertools.pairwise(shots)
        if first.of == "gradients before clipping" and second.of == "gradients"
    ]
    if not pairs:
        return ""
    before, after = pairs[0]
    numbers = [[shot for shot in observed.snapshots if shot.of == taken.of].index(taken) for taken in (before, after)]
    ranks = tuple(trace.observations)
    divided = [
        index
        for index, watched in enumerate(observed.parameters)
        if not watched.is_buffer
        and before.identities[index] != after.identities[index]
        and is_equal_everywhere(trace, ranks, of=before.of, number=numbers[0], parameter=watched.name)
        and is_equal_everywhere(trace, ranks, of=after.of, number=numbers[1], parameter=watched.name) is False
    ]
    return names_of(observed, divided)


def _histories(observed: Observations) -> dict[int, list[ScriptEvent]]:
    """Return per optimizer the events that concern its gradients, in order."""
    held = {made.subject for made in observed.of_kind(EventKind.OPTIMIZER_MADE)}
    return {
        optimizer: [event for event in observed.of_kind(*_KINDS) if _concerns(event, optimizer)] for optimizer in held
    }


def _concerns(event: ScriptEvent, optimizer: int) -> bool:
    match event.kind:
        case EventKind.BACKWARD_END:
            return True
        case EventKind.CLIP:
            return optimizer in event.facts["optimizers"]
        case EventKind.ZERO_GRAD:
            return event.facts["of"] != "optimizer" or event.subject == optimizer
    return event.subject == optimizer


def _has_effect(history: Sequence[ScriptEvent], clip: ScriptEvent) -> bool:
    """Return whether gradients are clipped between a backward pass and the next update."""
    is_behind = False
    last: EventKind | None = None
    for event in history:
        if event is clip:
            if last is not EventKind.BACKWARD_END:
                return False
            is_behind = True
        elif event.kind in (EventKind.BACKWARD_END, EventKind.OPTIMIZER_STEP, EventKind.ZERO_GRAD):
            if is_behind and event.kind is not EventKind.ZERO_GRAD:
                return True
            last = event.kind
    return is_behind


def _clipping(clip: ScriptEvent) -> str:
    return f"clips gradients to a {'norm' if clip.facts['how'] == 'norm' else 'value'} of {clip.facts['limit']:g}"
