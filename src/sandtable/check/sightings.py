"""Sightings: what a rule saw on one rank; ranks on which it saw the same are accused together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sandtable.check.relations import at_line, few_names
from sandtable.findings import Evidence
from sandtable.trace import EventKind, Line, Observations, Trace

__all__ = ["Sighting", "evidence_of", "is_equal_everywhere", "names_of", "places_where_made", "seen_together"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One thing that a rank did ("calls ..."), and on which line."""

    text: str
    place: Line = field(default_factory=Line)


def seen_together(
    trace: Trace, look: Callable[[Observations], Iterable[tuple[Sighting, ...]]]
) -> Iterator[tuple[tuple[int, ...], tuple[Sighting, ...]]]:
    """Yield what `look` sees, with the ranks on which it sees the same."""
    ranks: dict[tuple[Sighting, ...], list[int]] = defaultdict(list)
    for rank, observed in sorted(trace.observations.items()):
        for sightings in look(observed):
            if rank not in ranks[sightings]:
                ranks[sightings].append(rank)
    for sightings, seen_by in ranks.items():
        yield tuple(seen_by), sightings


def evidence_of(ranks: tuple[int, ...], sightings: Sequence[Sighting]) -> tuple[Evidence, ...]:
    """Return sightings as the evidence of a finding."""
    return tuple(at_line(ranks, seen.text, seen.place) for seen in sightings)


def names_of(observed: Observations, parameters: Sequence[int]) -> str:
    """Name a few parameters in words: `fc.weight, fc.bias and 4 more`."""
    return few_names([observed.parameters[index].name for index in parameters if 0 <= index < len(observed.parameters)])


def places_where_made(observed: Observations) -> dict[int, Line]:
    """Return the line on which each optimizer was made."""
    return {event.subject: event.place for event in observed.of_kind(EventKind.OPTIMIZER_MADE)}


def is_equal_everywhere(trace: Trace, ranks: Iterable[int], *, of: str, number: int, parameter: str) -> bool | None:
    """Return whether a parameter (or its gradient) was the same on all ranks; None if fewer than two are known.

    `of` is that of the snapshots, of which `number` is the one to look at, counted from the end if it is negative.
    """
    identities = set()
    num_known = 0
    for rank in ranks:
        observed = trace.observations.get(rank)
        taken = [] if observed is None else [shot for shot in observed.snapshots if shot.of == of]
        if observed is None or not -len(taken) <= number < len(taken):
            continue
        for index, watched in enumerate(observed.parameters):
            if watched.name == parameter and taken[number].identities[index]:
                num_known += 1
                identities.add(taken[number].identities[index])
                break
    return None if num_known < 2 else len(identities) == 1
