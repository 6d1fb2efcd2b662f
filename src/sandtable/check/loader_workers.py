"""Workers of data loaders: each must read samples of its own, and draw random numbers of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sandtable.check.relations import RankTable, at_line, data_parallel_groups, equal_seeds
from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, Observations, ScriptEvent, Trace

__all__ = ["ranks_draw_alike", "workers_draw_alike", "workers_repeat_samples"]


def workers_repeat_samples(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report iterable data sets of which each worker yields all samples."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for event in _passes(observed):
            count, samples = event.facts["num_workers"], event.facts["samples"]
            if not event.facts["is_iterable"] or count < 2 or len(samples) < count:
                continue
            rounds = [samples[start : start + count] for start in range(0, len(samples) - count + 1, count)]
            if all(len(set(row)) == 1 and row[0] for row in rounds):
                yield (
                    Sighting(text=f"makes a loader with {count} workers", place=Line(*event.facts["made"])),
                    Sighting(
                        text=f"reads each batch {count} times, once from each worker's copy of "
                        f"{event.facts['dataset']}",
                        place=event.place,
                    ),
                )
                return

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="workers-repeat-samples",
            severity=Severity.WARNING,
            message="each worker of a loader must read a part of an iterable data set of its own, but all of them "
            "read the whole",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="in __iter__ take every num_workers-th sample, from torch.utils.data.get_worker_info().id on",
        )


def workers_draw_alike(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report workers that draw the same random numbers as each other, or as in the pass before."""
    for ranks, sightings in seen_together(trace, _alike):
        yield Finding(
            rule="workers-draw-alike",
            severity=Severity.WARNING,
            message="each worker of a loader must draw random numbers of its own in every epoch, but here a generator "
            "is in the same state several times, so random augmentations repeat",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="make the generator in the worker, seeded with torch.initial_seed() or get_worker_info().seed, "
            "which differ by worker and epoch",
        )


def ranks_draw_alike(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Note ranks of which the workers, or the cards, draw the same random numbers."""
    yield from _cards_draw_alike(trace)
    states: dict[tuple[object, ...], list[tuple[int, ScriptEvent]]] = defaultdict(list)
    for rank, observed in sorted(trace.observations.items()):
        for event in _passes(observed):
            for report in event.facts.get("workers", ()):
                for name, state in report["drawn"].items():
                    states[event.facts["pass"], report["worker"], name, state].append((rank, event))
    for (_, _, name, _), seen in states.items():
        ranks = tuple(rank for rank, _ in seen)
        if len(set(ranks)) > 1:
            place = seen[0][1].place
            yield Finding(
                rule="ranks-draw-alike",
                severity=Severity.NOTE,
                message=f"workers of several ranks draw the same random numbers ({name}), so random augmentations are "
                "alike on all of them",
                ranks=ranks,
                evidence=(at_line(ranks, "starts workers", place),),
                remedy="add the rank to the seed that the script sets before it makes the loader",
            )
            return


def _cards_draw_alike(trace: Trace) -> Iterator[Finding]:
    table = RankTable(trace.observations)
    for group in data_parallel_groups(trace):
        ranks = tuple(rank for rank in group if rank in trace.observations)
        draws = [
            [draw for draw in trace.observations[rank].draws if draw.row >= table.ranks[rank].first_row]
            for rank in ranks
        ]
        alike = [row[0] for row in zip(*draws, strict=False) if len({draw.identity for draw in row}) == 1]
        if len(ranks) < 2 or not alike or not table.have_different_inputs(ranks):
            continue
        places = dict.fromkeys(draw.place for draw in alike)
        yield Finding(
            rule="ranks-draw-alike",
            severity=Severity.NOTE,
            message="ranks that read different samples draw the same random numbers on their cards, so noise and "
            "dropout masks are alike on all of them",
            ranks=ranks,
            evidence=(
                *(at_line(ranks, "draws the same random numbers as the others", place) for place in list(places)[:4]),
                *(at_line(ranks, text, place) for text, place in equal_seeds(trace, ranks)),
            ),
            remedy="add the rank to the seed after the model is made: torch.manual_seed(seed + rank)",
        )


def _alike(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
    seen: dict[tuple[object, ...], tuple[int, int]] = {}
    for event in _passes(observed):
        for report in event.facts.get("workers", ()):
            for name, state in report["drawn"].items():
                key = (event.subject, name, state)
                now = (event.facts["pass"], report["worker"])
                earlier = seen.setdefault(key, now)
                if earlier == now:
                    continue
                other = "another worker" if earlier[0] == now[0] else "the pass before"
                yield (
                    Sighting(text="makes the loader", place=Line(*event.facts["made"])),
                    Sighting(text=f"draws from {name} in its workers", place=Line(*event.facts["code"])),
                    Sighting(text=f"gets the same numbers in one worker as in {other}", place=event.place),
                )
                return


def _passes(observed: Observations) -> Iterator[ScriptEvent]:
    return (event for event in observed.of_kind(EventKind.LOADER) if "pass" in event.facts)
