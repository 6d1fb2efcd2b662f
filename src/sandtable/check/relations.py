"""Relations: which part of a step a call belongs to, and how ranks are related: replicas, or parts of one model."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property

from sandtable.findings import Evidence
from sandtable.trace import CallIdentity, EventKind, Line, Observations, Trace

__all__ = [
    "RankFacts",
    "RankTable",
    "at_line",
    "data_parallel_groups",
    "equal_seeds",
    "facts_of",
    "few_names",
    "shared_facts",
]

_MOST_NAMES = 3
_MOST_SEEDS = 4
_IRREGULAR = {"has": "have", "is": "are", "was": "were", "does": "do"}
_FEW_BYTES = 64
_MANY_BYTES = 1024
"""Collectives of fewer bytes carry losses, counts and flags, which ranks of all kinds share."""

_ACTIVATION_OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})


class RankFacts:
    """What follows from the observations of one rank."""

    def __init__(self, observed: Observations) -> None:
        self.observed = observed

    @cached_property
    def _turns(self) -> list[tuple[int, EventKind]]:
        """The beginnings of backward passes and updates, in order."""
        kinds = (EventKind.BACKWARD, EventKind.OPTIMIZER_STEP)
        return [(event.row, event.kind) for event in self.observed.of_kind(*kinds)]

    def is_forward(self, call: CallIdentity) -> bool:
        """Return whether a call belongs to a forward pass: a backward pass follows, and no update before it."""
        place = bisect_left(self._turns, (call.row, ""))
        is_before_backward = place < len(self._turns) and self._turns[place][1] is EventKind.BACKWARD
        return call.phase == "forward" and is_before_backward and call.row >= self.first_row

    def is_of_gradients(self, call: CallIdentity) -> bool:
        """Return whether a call belongs to a backward pass, or comes between the last one and the update."""
        place = bisect_left(self._turns, (call.row, ""))
        if call.row < self.first_row or place == 0:
            return False
        is_before_update = place < len(self._turns) and self._turns[place][1] is EventKind.OPTIMIZER_STEP
        return is_before_update or call.phase in ("backward", "optimizer")

    @cached_property
    def gradient_calls(self) -> tuple[CallIdentity, ...]:
        """The calls that belong to backward passes, or come between the last one and the update."""
        return tuple(filter(self.is_of_gradients, self.observed.calls))

    @cached_property
    def first_row(self) -> int:
        """The row behind which training begins: optimizers and wrappers have been made."""
        first = self._turns[0][0] if self._turns else 1 << 62
        made = self.observed.of_kind(EventKind.OPTIMIZER_MADE, EventKind.WRAPPED)
        return max((event.row for event in made if event.row < first), default=0)

    @cached_property
    def _second_step(self) -> int:
        """The row where the second step begins, or the first if there is one alone.

        What comes before the first backward pass may be setting up: an engine that is wrapped around a model sends its
        parameters.
        """
        return self._updates[0] if len(self._updates) > 1 else self.first_row

    def calls_between(self, first: int, last: int) -> list[CallIdentity]:
        """Return the collectives between two rows, of more than a few numbers."""
        calls = self.observed.calls
        return [call for call in calls if first <= call.row < last and call.num_bytes >= _MANY_BYTES]

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The identities of what came from the host while training, or else was drawn on the card."""
        copies = [row for row in self.observed.host_copies if row.row >= self.first_row and row.num_bytes > _FEW_BYTES]
        draws = [row for row in self.observed.draws if row.row >= self.first_row]
        return tuple(row.identity for row in (copies or draws))

    @cached_property
    def activation_calls(self) -> tuple[CallIdentity, ...]:
        """The collectives of forward passes that carry more than a few numbers, of setting up none.

        What carries the same numbers before and after an update depends on neither samples nor weights: it is no
        activation, but what an engine puts together again, such as weights whose numbers in host memory are unknown.
        """
        calls = [
            call
            for call in self.observed.calls
            if call.row >= self._second_step
            and call.op in _ACTIVATION_OPS
            and call.num_bytes >= _MANY_BYTES
            and self.is_forward(call)
        ]
        steps: dict[int, set[int]] = defaultdict(set)
        for call in calls:
            steps[call.identity].add(bisect_left(self._updates, call.row))
        return tuple(call for call in calls if not call.identity or len(steps[call.identity]) == 1)

    @cached_property
    def _updates(self) -> list[int]:
        return [row for row, kind in self._turns if kind is EventKind.OPTIMIZER_STEP]


@dataclass(frozen=True, slots=True, eq=False)
class _Key:
    """Observations by identity: comparing two would take longer than what is kept of them."""

    observed: Observations

    def __hash__(self) -> int:
        return id(self.observed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.observed is other.observed


def facts_of(observed: Observations) -> RankFacts:
    """Return what follows from the observations of a rank, which is worked out once for all rules."""
    return _facts(_Key(observed))


@cache
def _facts(key: _Key) -> RankFacts:
    return RankFacts(key.observed)


@contextmanager
def shared_facts() -> Iterator[None]:
    """Forget what follows from observations when the block ends."""
    try:
        yield
    finally:
        _facts.cache_clear()


class RankTable:
    """The facts of all captured ranks."""

    def __init__(self, observations: Mapping[int, Observations]) -> None:
        self.ranks = {rank: facts_of(observed) for rank, observed in sorted(observations.items())}

    def have_same_inputs(self, ranks: Iterable[int]) -> bool:
        """Return whether these ranks train on the same numbers, as far as any came from the host or were drawn."""
        inputs = {self.ranks[rank].inputs for rank in ranks if rank in self.ranks}
        return len(inputs) == 1 and any(inputs)

    def have_different_inputs(self, ranks: Iterable[int]) -> bool:
        """Return whether some of these ranks are known to train on different numbers."""
        return len({self.ranks[rank].inputs for rank in ranks if rank in self.ranks}) > 1

    def exchange_messages(self, one: int, other: int) -> bool:
        """Return whether a rank sends or receives in a group that holds the other one."""
        calls = self.ranks[one].observed.calls
        return any(call.op in ("send", "recv") and (not call.group or other in call.group) for call in calls)

    def shared_activations(self, one: int, other: int) -> set[str]:
        """Return the kinds of collectives of forward passes that both ranks take part in."""
        calls = self.ranks[one].activation_calls
        return {call.op for call in calls if not call.group or other in call.group}


def data_parallel_groups(trace: Trace) -> Iterator[tuple[int, ...]]:
    """Yield the groups of ranks whose gradients DDP or FSDP averages."""
    groups = {
        tuple(event.facts.get("group", ()))
        for observed in trace.observations.values()
        for event in observed.of_kind(EventKind.WRAPPED, EventKind.SHARDED)
    }
    return (group for group in sorted(groups) if len(group) > 1)


def equal_seeds(trace: Trace, ranks: Sequence[int]) -> list[tuple[str, Line]]:
    """Return where all of these ranks seed their random numbers alike."""
    events = [trace.observations[rank].of_kind(EventKind.SEEDED) for rank in ranks]
    seeds = [{(event.facts["how"], event.facts["seed"], event.place) for event in of_rank} for of_rank in events]
    alike = sorted(set.intersection(*seeds), key=lambda seed: seed[2].line)
    return [(f"calls {how}({seed})", place) for how, seed, place in alike][:_MOST_SEEDS]


def at_line(ranks: Iterable[int], text: str, place: Line) -> Evidence:
    """Return the observation that these ranks did something on a line; `text` begins with a verb: "calls send"."""
    members = tuple(ranks)
    words = text if len(members) == 1 else _plural(text)
    return Evidence(ranks=members, text=words, file=place.file, line=place.line)


def few_names(names: Sequence[str]) -> str:
    """Name a few things in words: `fc.weight, fc.bias and 4 more`."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _plural(text: str) -> str:
    """Return what several ranks do: `puts its weight on the card` becomes `put their weight on the card`."""
    verb, _, rest = text.partition(" ")
    if verb in _IRREGULAR:
        verb = _IRREGULAR[verb]
    elif verb.endswith("ties"):
        verb = verb.removesuffix("ies") + "y"
    elif verb.endswith(("sses", "shes", "ches", "xes")):
        verb = verb.removesuffix("es")
    else:
        verb = verb.removesuffix("s")
    return f"{verb} {rest}".replace(" its ", " their ").rstrip()
