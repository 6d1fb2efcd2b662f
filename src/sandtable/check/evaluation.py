"""Evaluation: each sample counts once in a metric, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.check.relations import at_line
from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, Observations, Trace

__all__ = ["metric_not_shared", "padded_evaluation"]


def metric_not_shared(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report metrics by which each rank decides for itself, and which differ between ranks."""
    events = {
        rank: list(observed.of_kind(EventKind.OWN_METRIC)) for rank, observed in sorted(trace.observations.items())
    }
    for together in zip(*events.values(), strict=False):
        names = {event.facts["name"] for event in together}
        are_known = all(event.facts["identity"] for event in together)
        if len(names) == 1 and are_known and len({event.facts["outline"] for event in together}) > 1:
            name, ranks = names.pop(), tuple(events)
            yield Finding(
                rule="metric-not-shared",
                severity=Severity.WARNING,
                message=f"what decides about checkpoints and learning rates must be the same on all ranks, but {name} "
                "is the value of each rank's own samples",
                ranks=ranks,
                evidence=(at_line(ranks, f"logs its own {name}", together[0].place),),
                remedy=f'log it with sync_dist=True, self.log("{name}", value, sync_dist=True), or with a metric of '
                "torchmetrics, which shares its state",
            )
            return


def padded_evaluation(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Note loaders that are evaluated on samples which their sampler repeats, so that ranks have equally many."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        passes = list(observed.of_kind(EventKind.LOADER))
        trained = {tuple(event.facts["made"]) for event in passes if event.facts.get("trains")}
        for event in passes if trained else ():
            made, num_padding = event.facts["made"], event.facts.get("num_padding", 0)
            if tuple(made) not in trained and num_padding > 0:
                text = f"makes a loader whose DistributedSampler repeats {num_padding} samples"
                yield Sighting(text=text, place=Line(*made)), Sighting(text="evaluates them", place=event.place)

    for ranks, sightings in (*seen_together(trace, look), *seen_together(trace, _padded_gathers)):
        yield Finding(
            rule="padded-evaluation",
            severity=Severity.NOTE,
            message="each sample should count once in a metric, but some are repeated so that all ranks have "
            "equally many, and the metric counts these twice",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="take every world_size-th sample without padding, Subset(data, range(rank, len(data), world_size)), "
            "and all-reduce sums and counts; or cut what was gathered to the length of the data set, as Accelerate's "
            "gather_for_metrics does",
        )


def _padded_gathers(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    trains = True
    for event in observed.of_kind(EventKind.LOADER, EventKind.PADDED_GATHER):
        if event.kind is EventKind.LOADER:
            trains = bool(event.facts.get("trains"))
            loader = event.place
        elif not trains:
            text = f"gathers a last batch of which only {event.facts['num_real']} samples are no repetition"
            yield Sighting(text=text, place=event.place), Sighting(text="evaluates these samples", place=loader)
            return
