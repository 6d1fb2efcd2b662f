"""Copies of parameters: what each rank's copy of a parameter held in time, and which ranks are replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sandtable.check.relations import RankTable
from sandtable.trace import CallIdentity, EventKind, Line, Observations, Trace, WatchedParameter

__all__ = [
    "Numbers",
    "ParameterCopy",
    "are_different",
    "first_difference",
    "grouped",
    "have_different_gradients",
    "replicas_of",
    "trained_copies",
]

_SNAPSHOTS = ("parameters", "gradients", "before", "local gradients")

Key = tuple[int, str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a tensor held at one moment: equal identities are equal numbers, different outlines different ones."""

    identity: int
    outline: int
    row: int = field(default=0, compare=False)

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
    local_gradients: tuple[Numbers, ...]
    """What the last backward pass before an update left, from the second update on."""
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
    """Return the copies of each parameter, or parts of it, that several captured ranks hold and update."""
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
            whole = [copy for copy in members if not _are_shards_of_one(members[0], copy)]
            replicas = [copy for copy in whole if relations.are_replicas(members[0], copy)]
            if len(replicas) > 1 and members[0].values[0].are_known:
                yield replicas


def _are_shards_of_one(one: ParameterCopy, other: ParameterCopy) -> bool:
    """Return whether these are shards that their ranks reduce together; norms begin as ones on all of them."""
    return one.parameter.is_sharded and one.rank != other.rank and any(other.rank in group for group in one.groups)


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
            return -1 if _become_one_again(copies, number + 1, table) else number
    return -1


def _become_one_again(copies: Sequence[ParameterCopy], number: int, table: RankTable) -> bool:
    """Return whether copies that differ after this update are averaged later, as in local SGD."""
    since = copies[0].values[number].row
    num_later = min(len(copy.later) for copy in copies)
    return any(copies[0].later[k].row >= since and _are_averaged(copies, k, table) for k in range(num_later))


def _are_averaged(copies: Sequence[ParameterCopy], moment: int, table: RankTable) -> bool:
    """Return whether copies are one before an update, and not because one copy has taken the place of the others.

    What each rank has updated would be lost then. Copies that no update has changed may well be replaced: they are
    another rank's to update.
    """
    numbers = [copy.later[moment] for copy in copies]
    if len({number.identity for number in numbers}) > 1 or not numbers[0].are_known:
        return False
    updates = [sum(value.row <= copy.later[moment].row for value in copy.values) - 1 for copy in copies]
    if min(updates) < 1:
        return True
    updated = [copy.values[update] for copy, update in zip(copies, updates, strict=True)]
    is_each_updated = all(
        copy.values[update] != copy.values[update - 1] for copy, update in zip(copies, updates, strict=True)
    )
    if not is_each_updated or not are_different(updated):
        return True
    calls = [
        call
        for copy, value in zip(copies, updated, strict=True)
        for call in table.ranks[copy.rank].calls_between(value.row, copy.later[moment].row)
    ]
    return not calls or any(call.op != "broadcast" for call in calls)


def have_different_gradients(copies: Sequence[ParameterCopy], number: int) -> bool:
    """Return whether the gradients of some update in the step behind which copies differ are not the same."""
    begin, end = copies[0].values[number].row, copies[0].values[number + 1].row
    updates = [
        k
        for k in range(min(len(copy.gradients) for copy in copies))
        if begin <= copies[0].gradients[k].row <= end and any(copy.gradients[k].are_known for copy in copies)
    ]
    return any(len({copy.gradients[k].identity for copy in copies}) > 1 for k in updates)


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
    """Yield what a rank holds of each parameter: a copy, or a part of which other ranks may have a copy."""
    rows = {of: [row for row in observed.snapshots if row.of == of] for of in _SNAPSHOTS}
    scales = [scale for scale in observed.scales if scale.of == "gradients"]
    groups = {number: scale.groups for scale in scales for number in scale.parameters}
    written: dict[int, list[Line]] = defaultdict(list)
    for scale in scales:
        for number in scale.parameters:
            written[number].append(scale.written)
    for number, parameter in enumerate(observed.parameters):
        if parameter.is_buffer:
            continue
        values, gradients, later, local_gradients = (
            tuple(
                Numbers(row.identities[number], row.outlines[number], row.row)
                for row in rows[of]
                if number < len(row.outlines)
            )
            for of in _SNAPSHOTS
        )
        yield ParameterCopy(
            rank=observed.rank,
            parameter=parameter,
            values=values,
            gradients=gradients,
            later=later,
            local_gradients=local_gradients,
            groups=groups.get(number, ()),
            written=tuple(written[number]),
        )


def _are_joined(copies: Sequence[ParameterCopy], table: RankTable) -> bool:
    """Return whether sums over groups connect all copies, as far as it is known over which groups they were summed.

    Ranks with the same inputs compute the parts of one model, so they count as connected, unless their gradients were
    different before they were summed.
    """
    if not all(copy.groups for copy in copies):
        return True
    if all(
        len({gradient.identity for gradient in gradients}) == 1
        for gradients in zip(*(copy.gradients for copy in copies), strict=False)
    ):
        return True
    label = {rank: rank for copy in copies for group in (copy.groups[0], (copy.rank,)) for rank in group}
    together = [group for copy in copies for group in copy.groups]
    pairs = [*pairwise(copies), *((copies[0], copy) for copy in copies)]
    together += [(one.rank, two.rank) for one, two in pairs if _compute_one_gradient(one, two, table)]
    for _ in together:
        for ranks in together:
            lowest = min(label.get(rank, rank) for rank in ranks)
            label.update(dict.fromkeys(ranks, lowest))
    return len({label[copy.rank] for copy in copies}) == 1


def _compute_one_gradient(one: ParameterCopy, other: ParameterCopy, table: RankTable) -> bool:
    """Return whether ranks with the same inputs come to the same gradient of a parameter, as far as that is known."""
    if not table.have_same_inputs((one.rank, other.rank)):
        return False
    pairs = zip(one.local_gradients, other.local_gradients, strict=False)
    return _has_untraced_sum(one, other, table) or not any(are_different(pair) for pair in pairs)


def _has_untraced_sum(one: ParameterCopy, other: ParameterCopy, table: RankTable) -> bool:
    """Return whether ranks sum gradients over a group that the account of no gradient has.

    A buffer that is summed in parts over one group and in other parts over another keeps account of the last ones only.
    """
    facts = table.ranks[one.rank]
    traced = {group for scale in facts.observed.scales for group in (*scale.groups, *scale.groups_again)}
    sums = (call for call in facts.gradient_calls if call.op == "all_reduce" and other.rank in call.group)
    return any(call.group not in traced for call in sums)


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
