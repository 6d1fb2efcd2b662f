"""Gathers: what a loss compares with features of other ranks must reach those ranks as gradients."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import Line, Observations, Trace

__all__ = ["gather_without_gradient"]


def gather_without_gradient(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report products of gathered activations through which no gradient gets back to where they came from."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        places: dict[Line, list[Line]] = {lost.gather: [] for lost in observed.lost_gathers}
        for lost in observed.lost_gathers:
            places[lost.gather].append(lost.place)
        for gather, uses in places.items():
            yield (
                Sighting(
                    text="gathers activations that need a gradient; all_gather returns plain numbers", place=gather
                ),
                *(Sighting(text="computes a loss from them", place=use) for use in uses[:4]),
            )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="gather-without-gradient",
            severity=Severity.WARNING,
            message="a loss over activations of all ranks must send gradients back through the gather, but "
            "torch.distributed.all_gather is no part of autograd, so half of the gradient is lost",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="gather with torch.distributed.nn.functional.all_gather, or put this rank's own activations back: "
            "gathered[rank] = activations; if no gradient is wanted, gather activations.detach()",
        )
