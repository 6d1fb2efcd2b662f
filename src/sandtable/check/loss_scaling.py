"""Loss scaling: what a GradScaler unscales it must have scaled before."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, Trace

__all__ = ["loss_not_scaled"]


def loss_not_scaled(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report updates through a GradScaler that has never scaled a loss."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        backward = None
        for event in observed.of_kind(EventKind.BACKWARD, EventKind.UNSCALE, EventKind.SCALER_STEP):
            if event.kind is EventKind.BACKWARD:
                backward = event
            elif backward is not None and event.facts["is_enabled"] and not event.facts["has_scaled"]:
                yield (
                    Sighting(text="computes gradients of a loss that was not scaled", place=backward.place),
                    Sighting(text="has the GradScaler unscale them", place=event.place),
                )
                return

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="loss-not-scaled",
            severity=Severity.ERROR,
            message="a GradScaler must scale the loss before the backward pass, but here the backward pass is that of "
            "the loss itself, and unscaling its gradients raises an AssertionError",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call scaler.scale(loss).backward(), or with Accelerate accelerator.backward(loss)",
        )
