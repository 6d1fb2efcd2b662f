"""Epochs: a loader that shuffles must do so differently in each pass, and each rank must read a part of its own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sandtable.check.relations import at_line
from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, Observations, ScriptEvent, Trace

__all__ = ["epoch_order", "sampler_shards"]

_IRREGULAR = 0.25
_FEWEST = 4
"""Samples that two passes must have read before their order says anything."""


def epoch_order(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report loaders that shuffle, and read the samples of two passes in the same order."""
    for ranks, sightings in seen_together(trace, _repeated_order):
        yield Finding(
            rule="epoch-order",
            severity=Severity.WARNING,
            message="each epoch must read the samples in an order of its own, but this loader shuffles them in the "
            "same way every time",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call sampler.set_epoch(epoch) before each epoch; without a DistributedSampler, do not seed the "
            "generator again",
        )
    for ranks, sightings in seen_together(trace, _repeated_own_order):
        yield Finding(
            rule="epoch-order",
            severity=Severity.NOTE,
            message="each epoch should read the samples in an order of its own; this sampler gives an irregular one, "
            "and the same in each pass",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="seed the generator of the sampler with seed + epoch, if it is meant to shuffle",
        )
    for ranks, sightings in seen_together(trace, _without_set_epoch):
        yield Finding(
            rule="epoch-order",
            severity=Severity.NOTE,
            message="a DistributedSampler that shuffles needs set_epoch before each epoch; this one was iterated "
            "without, which is right if training is over after one epoch",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call sampler.set_epoch(epoch) before each epoch",
        )


def sampler_shards(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report samplers that give ranks of one DDP group the same part of the data, or leave a part to nobody."""
    yield from _sharded_twice(trace)
    done: set[tuple[int, ...]] = set()
    for observed in trace.observations.values():
        for wrapped in observed.of_kind(EventKind.WRAPPED):
            group = tuple(wrapped.facts.get("group", ()))
            if group in done or len(group) < 2:
                continue
            done.add(group)
            yield from _wrong_shards(trace, group)


def _wrong_shards(trace: Trace, group: tuple[int, ...]) -> Iterator[Finding]:
    shards: dict[tuple[int, int], list[int]] = defaultdict(list)
    places: dict[int, ScriptEvent] = {}
    for rank in group:
        observed = trace.observations.get(rank)
        passes = [] if observed is None else [event for event in _training_passes(observed) if "replica" in event.facts]
        if passes:
            places[rank] = passes[0]
            shards[passes[0].facts["replicas"], passes[0].facts["replica"]].append(rank)
    shared = [ranks for ranks in shards.values() if len(ranks) > 1]
    is_partial = len(places) == len(group) and not shared and any(count > len(group) for count, _ in shards)
    if not shared and not is_partial:
        return
    fault = (
        "but some read the same one" if shared else "but there are more parts than ranks, and the rest is never read"
    )
    yield Finding(
        rule="sampler-shards",
        severity=Severity.WARNING,
        message=f"each rank of a data parallel group must read a part of the data of its own, {fault}",
        ranks=tuple(places),
        evidence=tuple(
            at_line(ranks, f"reads part {replica} of {replicas}", Line(*places[ranks[0]].facts["made"][:2]))
            for (replicas, replica), ranks in sorted(shards.items())
        ),
        remedy="let DistributedSampler take num_replicas and rank from the process group, or give it the size of the "
        "data parallel group and the rank in it, not the local rank",
    )


def _sharded_twice(trace: Trace) -> Iterator[Finding]:
    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for event in _training_passes(observed):
            parts, again = event.facts.get("replicas", 1), event.facts.get("parts_again", 1)
            if min(parts, again) > 1:
                yield (
                    Sighting(
                        text=f"makes a loader whose sampler reads one of {parts} parts, and of that one of {again}",
                        place=Line(*event.facts["made"]),
                    ),
                    Sighting(text="takes batches from it", place=event.place),
                )
                return

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="sampler-shards",
            severity=Severity.WARNING,
            message="the data must be divided between the ranks once, but a DistributedSampler does it and Accelerate "
            "does it again: most samples are read by nobody",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="give the loader that is prepared a sampler of all samples (RandomSampler, or shuffle=True)",
        )


def _repeated_order(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    return _repetitions(observed, lambda facts: bool(facts["shuffles"]))


def _repeated_own_order(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    return _repetitions(
        observed, lambda facts: facts["is_own_sampler"] and not facts["shuffles"] and _is_irregular(facts["indices"])
    )


def _is_irregular(order: Sequence[int]) -> bool:
    """Return whether an order goes down about as often as up, as a permutation does."""
    return sum(two < one for one, two in itertools.pairwise(order)) > _IRREGULAR * len(order)


def _repetitions(
    observed: Observations, is_meant: Callable[[Mapping[str, Any]], bool]
) -> Iterator[tuple[Sighting, ...]]:
    passes: dict[tuple[object, ...], list[ScriptEvent]] = defaultdict(list)
    for event in _training_passes(observed):
        passes[*event.facts["made"], event.facts["dataset"]].append(event)
    for events in passes.values():
        for first, second in itertools.pairwise(events):
            ours, theirs = first.facts["indices"], second.facts["indices"]
            count = min(len(ours), len(theirs))
            if count >= _FEWEST and ours[:count] == theirs[:count] and is_meant(first.facts):
                yield (
                    Sighting(text="makes the loader", place=Line(*first.facts["made"])),
                    Sighting(text=f"reads {count} samples in an order", place=first.place),
                    Sighting(text="reads them in the same order again", place=second.place),
                )
                break


def _without_set_epoch(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    if any(True for _ in _repeated_order(observed)):
        return
    knowing = {event.subject for event in observed.of_kind(EventKind.SET_EPOCH)}
    trains = any(True for _ in _training_passes(observed))
    for event in observed.of_kind(EventKind.SAMPLER):
        if trains and event.facts["shuffles"] and event.subject not in knowing:
            yield (Sighting(text="iterates over a sampler that was not told its epoch", place=event.place),)
            return


def _training_passes(observed: Observations) -> Iterator[ScriptEvent]:
    """Yield the passes over loaders during which backward passes ran."""
    return (event for event in observed.of_kind(EventKind.LOADER) if event.facts.get("trains"))
