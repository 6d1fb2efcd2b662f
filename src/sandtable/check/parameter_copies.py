"""Copies of parameters: what each rank's copy of a parameter held in time, and which ranks are replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sandtable.check.relations import RankTable
from sandtable.trace import CallIdentity, EventKind, Line, Observations, Trace, WatchedParameter

__all__ = ["Numbers", "ParameterCopy", "are_different", "first_difference", "grouped", "replicas_of", "trained_copies"]

Key = tuple[int, str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a tensor held at one moment: equal identities are equal numbers, different outlines different ones."""

    identity: int
    outline: int

    @property
    def are_known(self) -> bool:
        return self.identity != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCopy:
    """One rank's copy of a parameter at the start and after each update, and its gradient before each.

    `groups` are the ranks over which its gradients were summed, as far as that is known.
    """

    rank: int
    parameter: WatchedParameter
    values: tuple[Numbers, ...]
    gradients: tuple[Numbers, ...]
    later: tuple[Numbers, ...]
    """What it held before each later update, and at the end."""
    pauses: tuple[tuple[int, int], ...]
    """The rows between an update and `later`."""
    groups: tuple[tuple[int, ...], ...]
    written: tuple[Line, ...]
    """Where its gradient was last written before each update, as far as that was noted."""

    @property
    def key(self) -> Key:
        parameter = self.parameter
        return parameter.root, parameter.name, parameter.shape, parameter.dtype

    @property
    def is_trained(self) -> bool:
        return len(self.values) > 1 and any(gradient.are_known for gradient in self.gradients)


def trained_copies(trace: Trace) -> list[list[ParameterCopy]]:
    """Return the copies of each parameter that several captured ranks hold whole and update."""
    found: dict[Key, list[ParameterCopy]] = defaultdict(list)
    for _, observed in sorted(trace.observations.items()):
        for copy in _copies_of(observed):
            if copy.is_trained:
                found[copy.key].append(copy)
    return [copies for copies in found.values() if len(copies) > 1]


def replicas_of(trace: Trace) -> Iterator[list[ParameterCopy]]:
    """Yield the copies of each parameter that start alike, on ranks that are replicas of each other."""
    every = trained_copies(trace)
    relations = _Relations(trace, every)
    received = {rank: _received_from_wrappers(trace, rank) for rank in trace.observations}
    for copies in every:
        for members in grouped(copies, lambda copy: (copy.values[0].outline, received.get(copy.rank))):
            replicas = [copy for copy in members if relations.are_replicas(members[0], copy)]
            if len(replicas) > 1 and members[0].values[0].are_known:
                yield replicas


def _received_from_wrappers(trace: Trace, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return what the first rank of each group gave out where DDP was made over a part of the ranks.

    The outline of what was broadcast does not say what that was, and teams of ranks may train models of their own.
    """
    observed = trace.observations[rank]
    places = {(event.place.file, event.place.line) for event in observed.of_kind(EventKind.WRAPPED)}
    groups = dict.fromkeys(call.group for call in observed.calls if _is_made(call, places) and call.group)
    roots = {group: trace.observations.get(group[0]) for group in groups}
    return tuple(
        tuple(call.identity for call in root.calls if _is_made(call, places) and call.group == group)
        for group, root in roots.items()
        if root is not None
    )


def _is_made(call: CallIdentity, places: set[tuple[str, int]]) -> bool:
    return call.op == "broadcast" and (call.place.file, call.place.line) in places


def first_difference(copies: Sequence[ParameterCopy], table: RankTable) -> int:
    """Return the number of the first update after which copies differ for good, or -1."""
    num_updates = min(min(len(copy.values) - 1, len(copy.gradients)) for copy in copies)
    for number in range(num_updates):
        if are_different([copy.values[number + 1] for copy in copies]) or not _are_joined(copies, table):
            moments = range(number, min(len(copy.later) for copy in copies))
            return -1 if any(_are_averaged(copies, moment, table) for moment in moments) else number
    return -1


def _are_averaged(copies: Sequence[ParameterCopy], number: int, table: RankTable) -> bool:
    """Return whether copies have become one again behind an update, as in local SGD.

    What each rank has updated is lost if one copy takes the place of the others. Copies that no update has changed may
    well be replaced: they are another rank's to update.
    """
    if len({copy.later[number].identity for copy in copies}) > 1 or not copies[0].later[number].are_known:
        return False
    if any(number >= min(len(copy.values) - 1, len(copy.pauses)) for copy in copies):
        return True
    is_each_updated = all(copy.values[number + 1] != copy.values[number] for copy in copies)
    if not is_each_updated or not are_different(copy.values[number + 1] for copy in copies):
        return True
    calls = [call for copy in copies for call in table.ranks[copy.rank].calls_between(*copy.pauses[number])]
    return not calls or any(call.op != "broadcast" for call in calls)


def are_different(numbers: Iterable[Numbers]) -> bool:
    """Return whether these are known to be different numbers."""
    rows = list(numbers)
    return all(row.are_known for row in rows) and len({row.outline for row in rows}) > 1


def grouped(copies: Iterable[ParameterCopy], key: Callable[[ParameterCopy], Hashable]) -> list[list[ParameterCopy]]:
    """Return the copies in groups of equal keys."""
    groups: dict[Hashable, list[ParameterCopy]] = defaultdict(list)
    for copy in copies:
        groups[key(copy)].append(copy)
    return list(groups.values())


def _copies_of(observed: Observations) -> Iterator[ParameterCopy]:
    """Yield a rank's copies of the parameters that it holds whole."""
    rows = {of: [row for row in observed.snapshots if row.of == of] for of in ("parameters", "gradients", "before")}
    groups = {number: scale.groups for scale in observed.scales for number in scale.parameters}
    written: dict[int, list[Line]] = defaultdict(list)
    for scale in observed.scales:
        for number in scale.parameters:
            written[number].append(scale.written)
    for number, parameter in enumerate(observed.parameters):
        if parameter.is_sharded or parameter.is_buffer or not parameter.requires_grad:
            continue
        values, gradients, later = (
            tuple(
                Numbers(row.identities[number], row.outlines[number]) for row in rows[of] if number < len(row.outlines)
            )
            for of in ("parameters", "gradients", "before")
        )
        yield ParameterCopy(
            rank=observed.rank,
            parameter=parameter,
            values=values,
            gradients=gradients,
            later=later,
            pauses=tuple(
                zip((row.row for row in rows["parameters"][1:]), (row.row for row in rows["before"]), strict=False)
            ),
            groups=groups.get(number, ()),
            written=tuple(written[number]),
        )


def _are_joined(copies: Sequence[ParameterCopy], table: RankTable) -> bool:
    """Return whether sums over groups connect all copies, as far as it is known over which groups they were summed.

    Ranks with the same inputs compute the parts of one model, so they count as connected.
    """
    if not all(copy.groups for copy in copies):
        return True
    label = {rank: rank for copy in copies for group in (copy.groups[0], (copy.rank,)) for rank in group}
    together = [group for copy in copies for group in copy.groups]
    together += [(one.rank, two.rank) for one, two in pairwise(copies) if table.have_same_inputs((one.rank, two.rank))]
    together += [(copies[0].rank, copy.rank) for copy in copies if table.have_same_inputs((copies[0].rank, copy.rank))]
    for _ in together:
        for ranks in together:
            lowest = min(label.get(rank, rank) for rank in ranks)
            label.update(dict.fromkeys(ranks, lowest))
    return len({label[copy.rank] for copy in copies}) == 1


class _Relations:
    """How ranks are related: replicas of the whole model, or parts of one that share activations."""

    def __init__(self, trace: Trace, every: Iterable[Sequence[ParameterCopy]]) -> None:
        self._table = RankTable(trace.observations)
        self._starts: dict[int, dict[Key, Numbers]] = defaultdict(dict)
        for copies in every:
            for copy in copies:
                self._starts[copy.rank][copy.key] = copy.values[0]
        self._known: dict[tuple[int, int], str] = {}

    def are_replicas(self, one: ParameterCopy, other: ParameterCopy) -> bool:
        """Return whether these copies should stay alike."""
        if one.rank == other.rank:
            return True
        pair = min(one.rank, other.rank), max(one.rank, other.rank)
        if pair not in self._known:
            self._known[pair] = self._relation(*pair)
        # Norms of whole activations are copied, whatever else is cut: a part of them would have a smaller shape.
        return self._known[pair] == "replicas" or (self._known[pair] == "parts" and "Norm" in one.parameter.module)

    def _relation(self, one: int, other: int) -> str:
        mine, theirs = self._starts[one], self._starts[other]
        is_alike = (
            mine.keys() == theirs.keys()
            and any(mine[key].are_known for key in mine)
            and not any(are_different((mine[key], theirs[key])) for key in mine)
        )
        if self._table.exchange_messages(one, other):  # stages of a pipeline
            return "unknown"
        shares = self._table.shared_activations(one, other)
        if "all_to_all" in shares:  # experts, which are not copies
            return "unknown"
        if is_alike and not shares:
            return "replicas"
        if self._table.have_same_inputs((one, other)):
            return "parts" if shares else "unknown"
        return "replicas" if is_alike else "unknown"
