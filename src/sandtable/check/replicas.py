"""Replicas: ranks that hold copies of a parameter must start alike, get the same gradient and stay alike.

Identities tell (see `trace.observations`): equal ones are equal numbers, on whichever ranks they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from sandtable.check.relations import RankTable
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import EventKind, Trace, WatchedParameter

__all__ = ["gradients_not_reduced", "replicas_diverge", "replicas_start_different"]

_MOST_NAMES = 3

Key = tuple[int, str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """One rank's copy of a parameter: its identity at the start and after each update, and those of its gradients."""

    rank: int
    parameter: WatchedParameter
    values: tuple[int, ...]
    gradients: tuple[int, ...]

    @property
    def is_trained(self) -> bool:
        return any(self.gradients) and len(self.values) > 1


def replicas_start_different(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report parameters that differ between ranks which nevertheless share their gradients."""
    broken: dict[tuple[int, ...], list[Sequence[_Copy]]] = defaultdict(list)
    for copies in _trained(trace):
        shared = _groups_by(copies, lambda copy: copy.gradients[:1])
        for members in shared:
            starts = {copy.values[0] for copy in members}
            if len(members) > 1 and len(starts) > 1 and 0 not in starts and all(copy.gradients[0] for copy in members):
                broken[tuple(copy.rank for copy in members)].append(members)
    for ranks, parameters in broken.items():
        yield Finding(
            rule="replicas-start-different",
            severity=Severity.ERROR,
            message=f"replicas of a parameter must start with the same numbers, but {_names(parameters)} "
            "differ between ranks that share their gradients, and so they always will",
            ranks=ranks,
            evidence=tuple(_made(copy) for copy in parameters[0]) + tuple(_updates(trace, ranks)),
            remedy="give all replicas the same weights before the first step: broadcast those of one rank, wrap the "
            "model in DistributedDataParallel, or use the same seed on these ranks",
        )


def gradients_not_reduced(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report parameters that start alike on ranks with different samples, and get a gradient of each rank's own."""
    broken: dict[tuple[int, ...], list[Sequence[_Copy]]] = defaultdict(list)
    for copies in _diverging(trace):
        step = _first_difference(copies)
        if len({copy.gradients[step] for copy in copies}) > 1:
            broken[tuple(copy.rank for copy in copies)].append(copies)
    for ranks, parameters in broken.items():
        yield Finding(
            rule="gradients-not-reduced",
            severity=Severity.ERROR,
            message=f"replicas of a parameter must get the same gradient on every rank, but {_names(parameters)} "
            "get one of each rank's own and drift apart from the first update on",
            ranks=ranks,
            evidence=(*_backwards(trace, ranks), *_updates(trace, ranks)),
            remedy="average the gradients over these ranks before the update: let the forward pass go through "
            "DistributedDataParallel, or all_reduce each gradient with ReduceOp.AVG",
        )


def replicas_diverge(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report parameters that start alike and get the same gradients, and yet become different."""
    broken: dict[tuple[int, ...], list[Sequence[_Copy]]] = defaultdict(list)
    for copies in _diverging(trace):
        if len({copy.gradients[_first_difference(copies)] for copy in copies}) == 1:
            broken[tuple(copy.rank for copy in copies)].append(copies)
    for ranks, parameters in broken.items():
        yield Finding(
            rule="replicas-diverge",
            severity=Severity.ERROR,
            message=f"replicas must stay alike, but {_names(parameters)} become different though their gradients "
            "are the same: ranks update them differently",
            ranks=ranks,
            evidence=tuple(_updates(trace, ranks)),
            remedy="give the optimizer the same settings and the same state on these ranks, and change parameters "
            "outside of it on all of them or on none",
        )


def _copies(trace: Trace) -> Iterator[list[_Copy]]:
    """Yield the copies of each parameter that several ranks hold whole."""
    found: dict[Key, list[_Copy]] = defaultdict(list)
    for rank, observed in sorted(trace.observations.items()):
        values = [row.identities for row in observed.snapshots if row.of == "parameters"]
        gradients = [row.identities for row in observed.snapshots if row.of == "gradients"]
        for number, parameter in enumerate(observed.parameters):
            if parameter.is_sharded or parameter.is_buffer or not parameter.requires_grad:
                continue
            found[parameter.root, parameter.name, parameter.shape, parameter.dtype].append(
                _Copy(
                    rank=rank,
                    parameter=parameter,
                    values=tuple(row[number] for row in values if number < len(row)),
                    gradients=tuple(row[number] for row in gradients if number < len(row)),
                )
            )
    for copies in found.values():
        if len(copies) > 1:
            yield copies


def _trained(trace: Trace) -> Iterator[list[_Copy]]:
    """Yield the copies of each parameter on the ranks that update it."""
    for copies in _copies(trace):
        trained = [copy for copy in copies if copy.is_trained]
        if len(trained) > 1:
            yield trained


def _diverging(trace: Trace) -> Iterator[list[_Copy]]:
    """Yield copies that start alike and become different, on ranks that are replicas of each other."""
    relations = _Relations(trace)
    for copies in _trained(trace):
        for members in _groups_by(copies, lambda copy: copy.values[:1]):
            if members[0].values[0] == 0:
                continue
            replicas = [copy for copy in members if relations.are_replicas(members[0], copy)]
            if len(replicas) > 1 and _first_difference(replicas) >= 0:
                yield replicas


def _first_difference(copies: Sequence[_Copy]) -> int:
    """Return the number of the first update after which the copies differ, or -1."""
    num_updates = min(min(len(copy.values) - 1, len(copy.gradients)) for copy in copies)
    for number in range(num_updates):
        after = {copy.values[number + 1] for copy in copies}
        if len(after) > 1 and 0 not in after:
            return number
    return -1


class _Relations:
    """How ranks are related: replicas of the whole model, or parts of one that share activations."""

    def __init__(self, trace: Trace) -> None:
        self._table = RankTable(trace.observations)
        self._starts: dict[int, dict[Key, int]] = {}
        for copies in _copies(trace):
            for copy in copies:
                parameter = copy.parameter
                key = parameter.root, parameter.name, parameter.shape, parameter.dtype
                self._starts.setdefault(copy.rank, {})[key] = copy.values[0] if copy.values else 0
        self._known: dict[tuple[int, int], str] = {}

    def are_replicas(self, one: _Copy, other: _Copy) -> bool:
        """Return whether these copies should stay alike."""
        if one.rank == other.rank:
            return True
        relation = self._relation(one.rank, other.rank)
        # Norms of whole activations are copied, whatever else is cut: a part of them would have a smaller shape.
        return relation == "replicas" or (relation == "parts" and "Norm" in one.parameter.module)

    def _relation(self, one: int, other: int) -> str:
        pair = min(one, other), max(one, other)
        if pair not in self._known:
            self._known[pair] = self._find_relation(*pair)
        return self._known[pair]

    def _find_relation(self, one: int, other: int) -> str:
        mine, theirs = self._starts.get(one, {}), self._starts.get(other, {})
        is_alike = mine.keys() == theirs.keys() and all(mine[key] == theirs[key] for key in mine)
        shares = self._table.shared_activations(one, other)
        if "all_to_all" in shares:  # experts, which are not copies
            return "unknown"
        if is_alike and not shares:
            return "replicas"
        if self._table.have_same_inputs((one, other)):
            return "parts" if shares else "unknown"
        return "replicas" if is_alike else "unknown"


def _groups_by(copies: Sequence[_Copy], key: Callable[[_Copy], Hashable]) -> list[list[_Copy]]:
    groups: dict[Hashable, list[_Copy]] = defaultdict(list)
    for copy in copies:
        groups[key(copy)].append(copy)
    return list(groups.values())


def _names(parameters: Sequence[Sequence[_Copy]]) -> str:
    names = [copies[0].parameter.name for copies in parameters]
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _made(copy: _Copy) -> Evidence:
    place = copy.parameter.place
    return Evidence(ranks=(copy.rank,), text=f"made its {copy.parameter.name}", file=place.file, line=place.line)


def _backwards(trace: Trace, ranks: Sequence[int]) -> Iterator[Evidence]:
    return _events(trace, ranks, EventKind.BACKWARD, "computes its gradients")


def _updates(trace: Trace, ranks: Sequence[int]) -> Iterator[Evidence]:
    return _events(trace, ranks, EventKind.OPTIMIZER_STEP, "updates its parameters")


def _events(trace: Trace, ranks: Sequence[int], kind: EventKind, text: str) -> Iterator[Evidence]:
    """Yield the first event of this kind, once for all ranks that have it on the same line."""
    places: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank in ranks:
        for event in trace.observations[rank].of_kind(kind):
            places[event.place.file, event.place.line].append(rank)
            break
    for (file, line), members in places.items():
        yield Evidence(ranks=tuple(members), text=text, file=file, line=line)
