"""Parts of the data: what ranks of one data parallel group read, and hold back for validation, must not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from sandtable.check.relations import at_line, data_parallel_groups
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import EventKind, Line, ScriptEvent, Trace

__all__ = ["overlapping_samples", "split_differs"]

_FEWEST = 4
_SHARE = 0.02
"""Of two ranks' samples, the share that must be the same for it to be no padding."""
_NEARLY_ALL = 0.9


def overlapping_samples(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report passes in which ranks of one group read the same samples in orders of their own."""
    for group in data_parallel_groups(trace):
        passes = {rank: _training_passes(trace, rank) for rank in group if rank in trace.observations}
        for together in zip(*passes.values(), strict=False):
            shared = _shared_samples(together)
            if shared is None or (_are_over(trace, passes, together) and not _are_alike_in_the_end(together)):
                continue
            ranks = tuple(passes)
            yield Finding(
                rule="overlapping-samples",
                severity=Severity.WARNING,
                message="in each epoch the ranks of a data parallel group must read different samples, but "
                f"{shared[0]} of the first {shared[1]} of one rank are among those of another: each rank goes through "
                "all of the data by itself",
                ranks=ranks,
                evidence=tuple(_where_read(ranks, together)),
                remedy="give the loader a DistributedSampler (and call its set_epoch), or have the framework do it; a "
                "data set that shards itself must shuffle with the same seed on all ranks",
            )
            break


def split_differs(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report data sets that each rank splits in another way, so that parts overlap between ranks."""
    for group in data_parallel_groups(trace):
        subsets = {
            rank: [event for event in trace.observations[rank].of_kind(EventKind.SUBSET) if event.facts["indices"]]
            for rank in group
            if rank in trace.observations
        }
        together = list(zip(*subsets.values(), strict=False))
        for first, second in combinations(together, 2):
            if _is_leaking(first, second) and not _are_both_trained(trace, first[0], second[0]):
                ranks = tuple(subsets)
                yield Finding(
                    rule="split-differs",
                    severity=Severity.WARNING,
                    message="all ranks must split a data set in the same way, but each splits it by random numbers of "
                    "its own: samples that one rank keeps for validation are trained on by another",
                    ranks=ranks,
                    evidence=tuple(
                        dict.fromkeys(at_line(ranks, "cuts out a part", event.place) for event in (first[0], second[0]))
                    ),
                    remedy="split with a generator of a fixed seed: random_split(data, lengths, "
                    "generator=torch.Generator().manual_seed(0))",
                )
                break


def _training_passes(trace: Trace, rank: int) -> list[ScriptEvent]:
    passes = trace.observations[rank].of_kind(EventKind.LOADER)
    return [event for event in passes if event.facts.get("trains") and event.facts.get("rows")]


def _shared_samples(together: Sequence[ScriptEvent]) -> tuple[int, int] | None:
    """Return how many samples of one rank's pass another rank reads, too, and of how many; None if that is in order."""
    if any(event.facts["repeats"] for event in together) or len({event.facts["made"][1] for event in together}) > 1:
        return None
    # The last batch may be padded with samples that other ranks have.
    orders = [[row for rows in event.facts["rows"][:-1] for row in rows] for event in together]
    for one, other in combinations(orders, 2):
        if len(set(one)) < len(one) or len(set(other)) < len(other) or one[: len(other)] == other[: len(one)]:
            continue  # (samples that are drawn again, or all alike: same-samples knows better)
        num_shared, count = len(set(one) & set(other)), min(len(one), len(other))
        if num_shared >= max(_FEWEST, _SHARE * count):
            return num_shared, count
    return None


def _are_over(trace: Trace, ranks: Iterable[int], together: Sequence[ScriptEvent]) -> bool:
    """Return whether these passes came to their end, and all that was read in them is known."""
    if any(len(event.facts["rows"]) < len(event.facts["samples"]) for event in together):
        return False
    ended = ({end.facts["pass"] for end in trace.observations[rank].of_kind(EventKind.LOADER_END)} for rank in ranks)
    return all(event.facts["pass"] in passes for event, passes in zip(together, ended, strict=True))


def _are_alike_in_the_end(together: Sequence[ScriptEvent]) -> bool:
    """Return whether some passes had the same samples: whoever goes through all of the data reads what others read."""
    samples = [{row for rows in event.facts["rows"] for row in rows} for event in together]
    return any(len(one & other) >= _NEARLY_ALL * max(len(one), len(other)) for one, other in combinations(samples, 2))


def _where_read(ranks: tuple[int, ...], together: Sequence[ScriptEvent]) -> Iterator[Evidence]:
    yield at_line(ranks, f"makes a loader with a {together[0].facts['sampler']}", Line(*together[0].facts["made"]))
    yield at_line(ranks, "reads samples that another rank reads, too", together[0].place)


def _are_both_trained(trace: Trace, first: ScriptEvent, second: ScriptEvent) -> bool:
    """Return whether both parts are trained on, so that none of them is kept for validation."""
    passes = [event for observed in trace.observations.values() for event in observed.of_kind(EventKind.LOADER)]
    return {first.subject, second.subject} <= {event.facts["data"] for event in passes if event.facts.get("trains")}


def _is_leaking(first: Sequence[ScriptEvent], second: Sequence[ScriptEvent]) -> bool:
    """Return whether two parts are disjoint on each rank, and are not over all ranks."""
    if len({event.facts["data"] for event in (*first, *second)}) > 1:
        return False
    pairs = [(set(one.facts["indices"]), set(other.facts["indices"])) for one, other in zip(first, second, strict=True)]
    if any(one & other for one, other in pairs):
        return False
    return bool(set.union(*(one for one, _ in pairs)) & set.union(*(other for _, other in pairs)))
