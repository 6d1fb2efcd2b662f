"""Replicated tensors: what ranks of a mesh's dim declare to be the same must be the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sandtable.check.relations import RankTable, at_line, data_parallel_groups, facts_of
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, InputCopy, Line, ScriptEvent, Trace

__all__ = ["replicated_differs"]

_FEW_BYTES = 64
_SENDING = frozenset({"broadcast", "scatter", "all_gather"})


def replicated_differs(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report activations that ranks take as replicated, and have computed from different numbers."""
    declared: dict[tuple[int, ...], dict[int, list[ScriptEvent]]] = defaultdict(dict)
    for rank, observed in sorted(trace.observations.items()):
        for event in observed.of_kind(EventKind.REPLICATED):
            declared[tuple(event.facts["group"])].setdefault(rank, []).append(event)
    for by_rank in declared.values():
        for together in zip(*by_rank.values(), strict=False):
            if len(together) > 1 and _are_different(together):
                text = "gives DTensor a tensor as the same on all of them"
                yield _finding(trace, tuple(by_rank), text, together[0].place, severity=Severity.ERROR)
                return
    for ranks, place in _sums_of_other_samples(trace):
        text = "adds up activations with the others, and no gradients"
        yield _finding(trace, ranks, text, place, severity=Severity.WARNING)
        return


def _sums_of_other_samples(trace: Trace) -> Iterator[tuple[tuple[int, ...], Line]]:
    """Yield groups that add up activations of different samples, though their gradients belong to other groups."""
    table = RankTable(trace.observations)
    averaging = {
        group for observed in trace.observations.values() for scale in observed.scales for group in scale.groups
    }
    averaging |= set(data_parallel_groups(trace))
    for facts in table.ranks.values():
        for call in facts.activation_calls:
            ranks = tuple(rank for rank in call.group if rank in table.ranks)
            is_part = call.op == "all_reduce" and len(ranks) > 1
            if not is_part or any(set(call.group) <= set(group) for group in averaging):
                continue
            is_known = all(any(scale.groups for scale in table.ranks[rank].observed.scales) for rank in ranks)
            if is_known and _differing_copy(trace, ranks) is not None and not _is_sent(table, ranks, call.group):
                yield ranks, call.place


def _is_sent(table: RankTable, ranks: Sequence[int], group: tuple[int, ...]) -> bool:
    """Return whether a rank of a group sends its samples to the others."""
    calls = (call for rank in ranks for call in table.ranks[rank].observed.calls if call.group == group)
    return any(call.op in _SENDING and call.row >= table.ranks[ranks[0]].first_row for call in calls)


def _are_different(together: tuple[ScriptEvent, ...]) -> bool:
    """Return whether these are known to be different numbers, declared on one line."""
    is_one = len({(event.place, tuple(event.facts["shape"])) for event in together}) == 1
    is_known = all(event.facts["identity"] for event in together)
    return is_one and is_known and len({event.facts["outline"] for event in together}) > 1


def _finding(trace: Trace, ranks: tuple[int, ...], text: str, place: Line, *, severity: Severity) -> Finding:
    evidence = [at_line(ranks, text, place)]
    if (differing := _differing_copy(trace, ranks)) is not None:
        evidence.insert(0, at_line(ranks, "gets numbers of its own from the host", differing.place))
    loaders = [event for event in trace.observations[ranks[0]].of_kind(EventKind.LOADER) if event.facts.get("trains")]
    for event in loaders[:1]:
        evidence.append(at_line(ranks, "makes the loader", Line(*event.facts["made"])))
        evidence.append(at_line(ranks, "takes batches", event.place))
    return Finding(
        rule="replicated-differs",
        severity=severity,
        message="ranks of a tensor-parallel group must compute with the same activations, but theirs come from "
        "different numbers: they put together parts of different samples",
        ranks=ranks,
        evidence=tuple(evidence),
        remedy="let the ranks of a tensor-parallel group read the same samples, with a sampler that has num_replicas "
        "and rank of the data parallel mesh, and draw the same random numbers where they hold the same activations",
    )


def _differing_copy(trace: Trace, ranks: Sequence[int]) -> InputCopy | None:
    """Return the first copy from the host that all of these ranks make in training on one line, of other numbers."""
    facts = [facts_of(trace.observations[rank]) for rank in ranks]
    copies = [
        [copy for copy in rank.observed.host_copies if copy.num_bytes > _FEW_BYTES and copy.row >= rank.first_row]
        for rank in facts
    ]
    return next((row[0] for row in zip(*copies, strict=False) if _are_others(row)), None)


def _are_others(row: tuple[InputCopy, ...]) -> bool:
    return len({copy.identity for copy in row}) > 1 and len({(copy.place, copy.num_bytes) for copy in row}) == 1
