"""Scaling: gradients of a scaled loss must be unscaled before an update, and infinities looked for on all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, Trace

__all__ = ["infinities_of_own_shards", "scaled_update"]

_MOST_RANKS_FACTOR = 1e-3
"""What was multiplied by less was unscaled by hand: no mean over ranks and micro-batches divides by so much."""

_KINDS = (
    EventKind.SCALE,
    EventKind.BACKWARD,
    EventKind.UNSCALE,
    EventKind.SCALER_STEP,
    EventKind.ZERO_GRAD,
    EventKind.OPTIMIZER_STEP,
)


def scaled_update(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report updates that use the gradients of a scaled loss as they are."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        if any(scale.factor < _MOST_RANKS_FACTOR for scale in observed.scales if scale.of == "gradients"):
            return
        scale = None
        is_used = False
        unscaled: set[int] = set()
        for event in observed.of_kind(*_KINDS):
            match event.kind:
                case EventKind.SCALE:
                    scale, is_used = event, False
                case EventKind.BACKWARD:
                    is_used = scale is not None
                    unscaled.clear()
                case EventKind.UNSCALE | EventKind.SCALER_STEP:
                    unscaled.add(event.subject)
                case EventKind.ZERO_GRAD:
                    scale = None if is_used else scale
                case EventKind.OPTIMIZER_STEP if scale is not None and is_used and event.subject not in unscaled:
                    if event.facts.get("num_gradients"):
                        yield (
                            Sighting(text=f"multiplies the loss by {scale.facts['factor']:,.0f}", place=scale.place),
                            Sighting(text="updates with gradients that are as much too large", place=event.place),
                        )
                        return

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="scaled-update",
            severity=Severity.ERROR,
            message="gradients of a scaled loss must be unscaled before the update, but here the optimizer uses them "
            "as they are",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call scaler.step(optimizer) in place of optimizer.step(), and then scaler.update()",
        )


def infinities_of_own_shards(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report scalers that look for infinities in what one rank holds of gradients that are sharded."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for event in observed.of_kind(EventKind.SCALER_STEP):
            if event.facts["is_enabled"] and event.facts.get("num_flat_shards"):
                yield (Sighting(text="skips the update if its own shards hold an infinity", place=event.place),)
                return

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="infinities-of-own-shards",
            severity=Severity.ERROR,
            message="ranks that share a model must skip the same updates, but this GradScaler looks for infinities in "
            "the shards of its own rank only: one rank skips an update that the others make",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="use torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, or train in bfloat16 without a "
            "scaler",
        )
