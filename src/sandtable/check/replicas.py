"""Replicas: ranks that hold copies of a parameter must start alike, get the same gradient and stay alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sandtable.check.parameter_copies import (
    ParameterCopy,
    are_different,
    first_difference,
    grouped,
    have_different_gradients,
    replicas_of,
    trained_copies,
)
from sandtable.check.relations import RankTable, at_line, few_names
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import EventKind, Line, Observations, ScriptEvent, Trace

__all__ = ["gradients_not_reduced", "replicas_diverge", "replicas_start_different"]

Copies = Sequence[ParameterCopy]

_REMEDY = (
    "average the gradients over these ranks before the update: let the forward pass go through "
    "DistributedDataParallel, or all_reduce each gradient with ReduceOp.AVG"
)
_REMEDY_OF_CHANGES = "change a gradient in the same way on all ranks that hold the parameter, or on none"
_REMEDY_OF_DRAWS = (
    "where ranks hold the same activations, let them draw the same random numbers (one seed per model, others only "
    "inside the parts that are cut), or average these gradients over the ranks before the update"
)
_REMEDY_OF_HYBRID_SHARDS = (
    "average the gradients of the shards over these ranks before the update: give fully_shard a mesh with a dim for "
    "the replicas, too, or all_reduce each gradient with ReduceOp.AVG"
)


def replicas_start_different(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report parameters that differ between ranks which nevertheless share their gradients."""
    broken: dict[tuple[int, ...], list[Copies]] = defaultdict(list)
    for copies in trained_copies(trace):
        if copies[0].parameter.is_sharded:  # ranks that hold other parts
            continue
        for members in grouped(copies, lambda copy: copy.gradients[0].identity):
            is_shared = members[0].gradients[0].are_known and _are_summed_over(members)
            if is_shared and are_different(copy.values[0] for copy in members):
                broken[_ranks(members)].append(members)
    for ranks, parameters in broken.items():
        yield Finding(
            rule="replicas-start-different",
            severity=Severity.ERROR,
            message=f"replicas of a parameter must start with the same numbers, but {_names(parameters)} "
            "differ between ranks that share their gradients, and so they always will",
            ranks=ranks,
            evidence=(*_places(parameters[0]), *_events(trace, parameters[0], EventKind.OPTIMIZER_STEP, "updates it")),
            remedy="give all replicas the same weights before the first step: broadcast those of one rank, wrap the "
            "model in DistributedDataParallel, or use the same seed on these ranks",
        )


def gradients_not_reduced(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report parameters that start alike on ranks with different samples, and get a gradient of each rank's own."""
    for ranks, parameters in _diverging(trace, by_gradient=True).items():
        changes, own_draws = _last_changes(parameters[0]), tuple(_own_draws(trace, ranks))
        yield Finding(
            rule="gradients-not-reduced",
            severity=Severity.ERROR,
            message=f"replicas of a parameter must get the same gradient on every rank, but {_names(parameters)} "
            "get one of each rank's own and drift apart from the first update on",
            ranks=ranks,
            evidence=(
                *_reductions(trace, parameters[0]),
                *_events(trace, parameters[0], EventKind.BACKWARD, "computes its gradients"),
                *changes,
                *_events(trace, parameters[0], EventKind.OPTIMIZER_STEP, "updates its parameters"),
                *own_draws,
            ),
            remedy=_remedy(parameters[0], changes, own_draws),
        )


def _remedy(copies: Copies, changes: Sequence[Evidence], own_draws: Sequence[Evidence]) -> str:
    if own_draws:
        return _REMEDY_OF_DRAWS
    if changes:
        return _REMEDY_OF_CHANGES
    return _REMEDY_OF_HYBRID_SHARDS if copies[0].parameter.is_sharded else _REMEDY


def replicas_diverge(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report parameters that start alike and get the same gradients, and yet become different."""
    for ranks, parameters in _diverging(trace, by_gradient=False).items():
        yield Finding(
            rule="replicas-diverge",
            severity=Severity.ERROR,
            message=f"replicas must stay alike, but {_names(parameters)} become different though their gradients "
            "are the same: ranks update them differently",
            ranks=ranks,
            evidence=(
                *_updates(trace, parameters[0]),
                *_events(trace, parameters[0], EventKind.CHANGED, "changes them outside of the optimizer"),
            ),
            remedy="give the optimizer the same settings and the same state on these ranks, and change parameters "
            "outside of it on all of them or on none",
        )


def _diverging(trace: Trace, *, by_gradient: bool) -> dict[tuple[int, ...], list[Copies]]:
    """Return the replicas that become different, because of their gradients or in spite of them, by ranks."""
    broken: dict[tuple[int, ...], list[Copies]] = defaultdict(list)
    table = RankTable(trace.observations)
    for copies in replicas_of(trace):
        number = first_difference(copies, table)
        if number < 0:
            continue
        has_skipped = len({_num_passes(trace, copy, copy.values[number + 1].row) for copy in copies}) > 1
        if by_gradient == (have_different_gradients(copies, number) and not has_skipped):
            broken[_ranks(copies)].append(copies)
    return broken


def _are_summed_over(copies: Copies) -> bool:
    """Return whether gradients of these copies were summed over a group that holds several of them."""
    ranks = set(_ranks(copies))
    return any(len(ranks & set(group)) > 1 for copy in copies for group in copy.groups)


def _own_draws(trace: Trace, ranks: Sequence[int]) -> Iterator[Evidence]:
    """Yield where ranks that compute the parts of one model, from the same samples, draw different random numbers."""
    table = RankTable(trace.observations)
    if not table.have_same_inputs(ranks):
        return
    draws = [
        [draw for draw in trace.observations[rank].draws if draw.row >= table.ranks[rank].first_row] for rank in ranks
    ]
    for together in zip(*draws, strict=False):
        if len({draw.identity for draw in together}) > 1:
            yield at_line(ranks, "draws random numbers of its own", together[0].place)
            break
    else:
        return
    for rank in ranks:
        for event in trace.observations[rank].of_kind(EventKind.SEEDED):
            if "torch" in event.facts["how"]:
                yield at_line((rank,), f"calls {event.facts['how']}({event.facts['seed']})", event.place)


def _ranks(copies: Copies) -> tuple[int, ...]:
    return tuple(copy.rank for copy in copies)


def _names(parameters: Sequence[Copies]) -> str:
    return few_names([copies[0].parameter.name for copies in parameters])


def _last_changes(copies: Copies) -> tuple[Evidence, ...]:
    """Return where the ranks last wrote this gradient, if they did so on different lines: some change it by hand."""
    alike = grouped(copies, lambda copy: copy.written[:1])
    if len(alike) < 2 or not all(copy.written and copy.written[0].file for copy in copies):
        return ()
    name = copies[0].parameter.name
    return tuple(
        at_line(_ranks(members), f"writes its gradient of {name} last", members[0].written[0]) for members in alike
    )


def _places(copies: Copies) -> Iterator[Evidence]:
    """Yield where the ranks made and last wrote their copies, once for all that did so on the same line."""
    name = copies[0].parameter.name
    for members in grouped(copies, lambda copy: copy.parameter.place):
        yield at_line(_ranks(members), f"puts its {name} on the card", members[0].parameter.place)
    for members in grouped(copies, lambda copy: copy.parameter.written):
        yield at_line(_ranks(members), f"writes its {name} last before training", members[0].parameter.written)


def _reductions(trace: Trace, copies: Copies) -> Iterator[Evidence]:
    """Yield where gradients are summed over a group that does not hold all copies."""
    groups = {group for copy in copies for group in copy.groups}
    places: dict[Line, tuple[str, int, set[int]]] = {}
    for copy in copies:
        for call in trace.observations[copy.rank].calls:
            if call.group in groups and call.reduce:
                places.setdefault(call.place, (call.op, len(call.group), set()))[2].add(copy.rank)
    for place, (op, size, ranks) in places.items():
        yield at_line(sorted(ranks), f"calls {op} over a group of {size} ranks", place)


def _num_passes(trace: Trace, copy: ParameterCopy, row: int) -> int:
    """Return how many backward passes a rank has run up to here: fewer than others if it makes updates they skip."""
    return sum(event.row < row for event in trace.observations[copy.rank].of_kind(EventKind.BACKWARD))


def _updates(trace: Trace, copies: Copies) -> Iterator[Evidence]:
    """Yield how ranks update a parameter, and what makes their updates different as far as it is known."""
    steps: dict[int, list[ScriptEvent]] = {}
    for copy in copies:
        first = _events_of(trace.observations[copy.rank], copy, EventKind.OPTIMIZER_STEP)
        updates = trace.observations[copy.rank].of_kind(EventKind.OPTIMIZER_STEP)
        steps[copy.rank] = [step for step in updates if first and step.subject == first[0].subject]
    for number in range(min(map(len, steps.values()))):
        rates = {rank: tuple(of[number].facts.get("rates", ())) for rank, of in steps.items()}
        if len(set(rates.values())) > 1:
            yield from _rates(trace, {rank: of[number] for rank, of in steps.items()}, number + 1)
            return
    yield from _events(trace, copies, EventKind.OPTIMIZER_STEP, "updates its parameters")


def _rates(trace: Trace, steps: Mapping[int, ScriptEvent], number: int) -> Iterator[Evidence]:
    """Yield with which learning rates ranks make one of their updates, and where schedulers set them."""
    texts: dict[tuple[Line, str], list[int]] = defaultdict(list)
    for rank, step in steps.items():
        rate = next(iter(step.facts["rates"]), 0.0)
        texts[step.place, f"makes update {number} with a learning rate of {rate:g}"].append(rank)
        for event in trace.observations[rank].of_kind(EventKind.SCHEDULER_STEP):
            if event.row < step.row and not event.facts["is_initial"]:
                texts[event.place, f"steps {event.facts['name']}"].append(rank)
    for (place, text), ranks in texts.items():
        yield at_line(dict.fromkeys(ranks), text, place)


def _events(trace: Trace, copies: Copies, kind: EventKind, text: str) -> Iterator[Evidence]:
    """Yield what ranks do with a parameter: its first update, the pass before, or changes outside of any update."""
    places: dict[Line, dict[int, None]] = defaultdict(dict)
    for copy in copies:
        for event in _events_of(trace.observations[copy.rank], copy, kind):
            places[event.place][copy.rank] = None
    for place, members in places.items():
        yield at_line(members, text, place)


def _events_of(observed: Observations, copy: ParameterCopy, kind: EventKind) -> list[ScriptEvent]:
    index = next((k for k, one in enumerate(observed.parameters) if one is copy.parameter), -1)
    if kind is EventKind.CHANGED:
        return [event for event in observed.of_kind(kind) if index in event.facts["parameters"]]
    holders = {held.optimizer for held in observed.optimizers if index in held.parameters}
    last_pass = None
    for event in observed.of_kind(EventKind.BACKWARD, EventKind.OPTIMIZER_STEP):
        if event.kind is EventKind.BACKWARD:
            last_pass = event
        elif not holders or event.subject in holders:
            found = last_pass if kind is EventKind.BACKWARD else event
            return [found] if found is not None else []
    return []
