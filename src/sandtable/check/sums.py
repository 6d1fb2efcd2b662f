"""Sums: what ranks add up must differ, once, and by the right number.

A collective that sums equal contributions wastes the cards that computed them; a gradient that was summed twice, or was
not divided by the number of ranks, makes another step than the script means.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import isclose, prod

from sandtable.check.loss_division import divided_for_each_micro_batch_twice
from sandtable.check.relations import (
    RankFacts,
    RankTable,
    at_line,
    data_parallel_groups,
    equal_seeds,
    facts_of,
    few_names,
)
from sandtable.check.sightings import is_equal_everywhere, names_of
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import CallIdentity, EventKind, GradientScale, InputCopy, Line, Observations, Trace

__all__ = ["averaged_twice", "identical_shards", "reduced_twice", "same_samples", "summed_not_averaged"]

_SUMS = ("sum", "avg", "premul_sum")
_ITEM_BYTES = (1, 2, 4, 8)
_FEW_BYTES = 16
"""Smaller sums are of losses and counts."""

_MOST_COPIES = 4

Call = tuple[tuple[int, ...], int]
"""The ranks of a group, and the number of a call in it."""


def same_samples(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that are equal on all ranks before they are averaged."""
    table = RankTable(trace.observations)
    for ranks, calls in _equal_sums(trace, ops=("all_reduce", "reduce_scatter"), of_activations=False):
        # Numbers that a script makes up may be meant to be equal, to measure speed for example; those of a loader not.
        loaders = _loaders(trace.observations[ranks[0]])
        # Where ranks do read different samples, what is equal was drawn, such as the noise of a GAN's generator.
        is_read = loaders and not table.have_different_inputs(ranks)
        yield _same_samples(trace, ranks, calls[0], severity=Severity.WARNING if is_read else Severity.NOTE)
    yield from _same_samples_of_some(trace)


def _same_samples(trace: Trace, ranks: tuple[int, ...], call: CallIdentity, *, severity: Severity) -> Finding:
    observed = trace.observations[ranks[0]]
    evidence = [_sum_evidence(ranks, call)]
    for copy in _copies_in_steps(observed)[:_MOST_COPIES]:
        evidence.append(at_line(ranks, "gets the same numbers as the others from the host", copy.place))
    evidence += [at_line(ranks, text, place) for text, place in _loaders(observed) or equal_seeds(trace, ranks)]
    return Finding(
        rule="same-samples",
        severity=severity,
        message="ranks that average their gradients must compute them from different samples, but "
        f"{len(ranks)} captured ranks of the group put in the same ones: they trained on the same samples, "
        "or on the same random numbers",
        ranks=ranks,
        evidence=tuple(dict.fromkeys(evidence)),
        remedy="give each data-parallel rank its own part of the data: a DistributedSampler with num_replicas and "
        "rank (and set_epoch), or a seed that depends on the rank where samples are drawn at random",
    )


def _same_samples_of_some(trace: Trace) -> Iterator[Finding]:
    """Report ranks of a data parallel group that put in the same gradients, while others put in different ones."""
    total: Counter[tuple[int, ...]] = Counter()
    equal: dict[tuple[tuple[int, ...], tuple[int, ...]], list[CallIdentity]] = defaultdict(list)
    world, groups = tuple(range(trace.world_size)), set(data_parallel_groups(trace))
    for (group, _), calls in _sums(trace, ops=("all_reduce", "reduce_scatter"), of_activations=False).items():
        if (group or world) not in groups:
            continue
        ranks = tuple(sorted(calls))
        total[ranks] += next(iter(calls.values())).num_bytes
        alike: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            alike[calls[rank].identity].append(rank)
        for members in alike.values() if len(alike) > 1 else ():
            if len(members) > 1:
                equal[ranks, tuple(members)].append(calls[members[0]])
    for (ranks, part), same in equal.items():
        if 2 * sum(call.num_bytes for call in same) > total[ranks]:
            yield _same_samples(trace, part, same[0], severity=Severity.WARNING)


def identical_shards(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report activations that are equal on all ranks which add them up or put them side by side."""
    ops = ("all_reduce", "reduce_scatter", "all_gather")
    for ranks, calls in _equal_sums(trace, ops=ops, of_activations=True):
        if _are_replicas(trace.observations[ranks[0]], ranks):
            continue  # what they gather is alike because their samples are
        yield Finding(
            rule="identical-shards",
            severity=Severity.WARNING,
            message="ranks that each compute a part of a layer must hold different parts of its weights, but all "
            f"{len(ranks)} captured ranks of the group put the same activations together",
            ranks=ranks,
            evidence=(_sum_evidence(ranks, calls[0]), *_equal_weights(trace, ranks)),
            remedy="initialise each shard from its own random numbers (a seed that depends on the rank in the group), "
            "or cut the shards out of one full weight",
        )


def _equal_weights(trace: Trace, ranks: tuple[int, ...]) -> Iterator[Evidence]:
    """Yield where ranks last wrote matrices that start alike, among which are those that should not."""
    places: dict[Line, list[str]] = defaultdict(list)
    observed = trace.observations[ranks[0]]
    for parameter in observed.parameters:
        if parameter.is_buffer or len(parameter.shape) < 2 or not parameter.written.file:
            continue
        if is_equal_everywhere(trace, ranks, of="parameters", number=0, parameter=parameter.name):
            places[parameter.written].append(parameter.name)
    for place, names in list(places.items())[:_MOST_COPIES]:
        yield at_line(ranks, f"writes {few_names(names)} last before training, alike", place)


def reduced_twice(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that were summed over a group a second time, though nothing was added since."""
    for scale, ranks in _scales(trace):
        if scale.groups_again:
            again = scale.groups_again[0]
            yield Finding(
                rule="reduced-twice",
                severity=Severity.WARNING,
                message="gradients must be reduced over a group once, but those of "
                f"{_parameters(trace, ranks[0], scale)} were reduced twice over a group of {len(again)} ranks",
                ranks=ranks,
                evidence=(*_reductions(trace, ranks[0], again), at_line(ranks, "updates its parameters", scale.place)),
                remedy="leave one of the two out: DistributedDataParallel and FSDP have reduced the gradients when "
                "backward() returns",
            )


def summed_not_averaged(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that were summed over ranks and divided by nothing, and a loss that was not either."""
    table = RankTable(trace.observations)
    for scale, ranks in _scales(trace):
        groups = [group for group in scale.groups if table.have_different_inputs(group)]  # (not parts of one model)
        count = prod(map(len, groups))
        if count < 2 or scale.groups_again or not isclose(scale.factor, 1, rel_tol=1e-6):
            continue
        if any(_divides_loss(facts, (count, *map(len, groups))) for facts in table.ranks.values()):
            continue
        yield Finding(
            rule="summed-not-averaged",
            severity=Severity.WARNING,
            message=f"gradients must be averaged over {count} ranks, but those of "
            f"{_parameters(trace, ranks[0], scale)} were summed: each update is {count} times as large as on one rank",
            ranks=ranks,
            evidence=(*_reductions(trace, ranks[0], groups[0]), at_line(ranks, "updates them", scale.place)),
            remedy="use ReduceOp.AVG, or divide the gradients (or the loss) by the number of ranks",
        )
    yield from _summed_parameters(trace)


def _summed_parameters(trace: Trace) -> Iterator[Finding]:
    """Yield a finding where parameters that several ranks have trained are summed, and divided by nothing."""
    for scale, ranks in _scales(trace, of="parameters"):
        count = prod(map(len, scale.groups))
        if count < 2 or not isclose(scale.factor, 1, rel_tol=1e-6):
            continue
        if not set(scale.groups[0]) & trace.observations.keys() <= set(ranks):  # (the others may have put in zeros)
            continue
        yield Finding(
            rule="summed-not-averaged",
            severity=Severity.ERROR,
            message=f"parameters that {count} ranks have trained must be averaged, but "
            f"{_parameters(trace, ranks[0], scale)} were summed: they are {count} times as large as on one rank",
            ranks=ranks,
            evidence=(at_line(ranks, "writes the sums", scale.written), at_line(ranks, "updates them", scale.place)),
            remedy="use ReduceOp.AVG, or divide the parameters by the number of ranks",
        )


def averaged_twice(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients that were divided by the number of ranks once more than they were summed."""
    yield from divided_for_each_micro_batch_twice(trace)
    table = RankTable(trace.observations)
    for scale, ranks in _scales(trace):
        count = prod(map(len, scale.groups))
        # (the samples of all ranks that tokens came from are in the gradients of an expert)
        has_experts = any(call.op == "all_to_all" for call in table.ranks[ranks[0]].activation_calls)
        if count < 2 or scale.groups_again or has_experts:
            continue
        if any(isclose(scale.factor * count * len(group), 1, rel_tol=1e-4) for group in scale.groups if len(group) > 1):
            yield Finding(
                rule="averaged-twice",
                severity=Severity.WARNING,
                message=f"gradients summed over {count} ranks must be divided by {count}, but those of "
                f"{_parameters(trace, ranks[0], scale)} were divided by {1 / scale.factor:g}",
                ranks=ranks,
                evidence=(
                    *_reductions(trace, ranks[0], scale.groups[0]),
                    at_line(ranks, "changes them last", scale.written),
                    at_line(ranks, "updates them", scale.place),
                ),
                remedy="divide once: DistributedDataParallel, FSDP and ReduceOp.AVG average already",
            )


def _equal_sums(
    trace: Trace, *, ops: Sequence[str], of_activations: bool
) -> Iterator[tuple[tuple[int, ...], list[CallIdentity]]]:
    """Yield groups whose captured members put equal numbers into most of what they sum, with the calls of one."""
    equal: dict[tuple[int, ...], list[CallIdentity]] = defaultdict(list)
    total: Counter[tuple[int, ...]] = Counter()
    for calls in _sums(trace, ops=ops, of_activations=of_activations).values():
        ranks = tuple(sorted(calls))
        if len(ranks) > 1:
            total[ranks] += next(iter(calls.values())).num_bytes
            if len({call.identity for call in calls.values()}) == 1:
                equal[ranks].append(calls[ranks[0]])
    for ranks, same in equal.items():
        if 2 * sum(call.num_bytes for call in same) > total[ranks]:
            yield ranks, same


def _sums(trace: Trace, *, ops: Sequence[str], of_activations: bool) -> dict[Call, dict[int, CallIdentity]]:
    """Return what each captured rank puts into each sum."""
    by_call: dict[Call, dict[int, CallIdentity]] = defaultdict(dict)
    for rank, observed in sorted(trace.observations.items()):
        facts = facts_of(observed)
        weights = _shard_sizes(observed) if of_activations else frozenset()
        for call in facts.activation_calls if of_activations else facts.gradient_calls:
            is_one = call.op in ops and call.num_bytes >= _FEW_BYTES and call.identity
            if call.op == "all_gather" and call.num_bytes in weights:
                continue
            if is_one and (call.op == "all_gather" or call.reduce in _SUMS):
                by_call[call.group, call.number][rank] = call
    return by_call


def _are_replicas(observed: Observations, ranks: Sequence[int]) -> bool:
    """Return whether these ranks add up most of their gradients, as parts of one model do not."""
    last = max((scale.step for scale in observed.scales), default=0)
    sizes: Counter[bool] = Counter()
    for scale in observed.scales:
        if scale.step == last:
            sizes[any(set(ranks) <= set(group) for group in scale.groups)] += len(scale.parameters)
    return sizes[True] > sizes[False]


def _shard_sizes(observed: Observations) -> frozenset[int]:
    """Return how many bytes gathered shards of weights may have: the numbers in offloaded ones are unknown."""
    numbers = {prod(parameter.shape) for parameter in observed.parameters if parameter.is_sharded}
    return frozenset(number * item_bytes for number in numbers for item_bytes in _ITEM_BYTES)


def _copies_in_steps(observed: Observations) -> list[InputCopy]:
    """Return the copies from the host in the second step, the largest first; one per line of the script."""
    first = next((event.row for event in observed.of_kind(EventKind.OPTIMIZER_STEP)), 0)
    copies = {copy.place: copy for copy in observed.host_copies if copy.row > first and copy.num_bytes > 64}
    return sorted(copies.values(), key=lambda copy: -copy.num_bytes)


def _loaders(observed: Observations) -> list[tuple[str, Line]]:
    """Return where loaders that feed the training are made, and where batches are taken from them."""
    passes = list(observed.of_kind(EventKind.LOADER))
    passes = [event for event in passes if event.facts.get("trains")] or passes
    made = [("makes the loader", Line(*event.facts["made"])) for event in passes]
    return list(dict.fromkeys([*made, *(("takes batches", event.place) for event in passes)]))[:_MOST_COPIES]


def _scales(trace: Trace, *, of: str = "gradients") -> Iterator[tuple[GradientScale, tuple[int, ...]]]:
    """Yield how most gradients of a rank were scaled in its last update but one, once for all ranks that agree."""
    found: dict[tuple[float, tuple[tuple[int, ...], ...]], tuple[GradientScale, dict[int, None]]] = {}
    for rank, observed in sorted(trace.observations.items()):
        scales = [scale for scale in observed.scales if scale.of == of]
        last = [scale for scale in scales if scale.step == max(one.step for one in scales)]
        for scale in last:
            sizes = tuple(tuple(len(group) for group in groups) for groups in (scale.groups, scale.groups_again))
            found.setdefault((scale.factor, sizes), (scale, {}))[1][rank] = None
    for scale, ranks in found.values():
        yield scale, tuple(ranks)


def _divides_loss(facts: RankFacts, sizes: Sequence[int]) -> bool:
    """Return whether a rank divides a loss by a multiple of one of these sizes, or by a count that ranks add up."""
    factors = facts.observed.loss_factors
    numbers = {round(number) for factor in factors for number in (factor, 1 / factor if factor else 0) if number > 1.5}
    if any(number % size == 0 for number in numbers for size in sizes if size > 1):
        return True
    calls = facts.observed.calls
    return any(row.op == "all_reduce" and row.num_bytes <= _FEW_BYTES and facts.is_forward(row) for row in calls)


def _reductions(trace: Trace, rank: int, group: tuple[int, ...]) -> Iterator[Evidence]:
    """Yield the lines on which gradients are reduced over this group."""
    facts, world = facts_of(trace.observations[rank]), tuple(range(trace.world_size))
    calls = [call for call in facts.observed.calls if (call.group or world) == group and call.reduce in _SUMS]
    ranks = sorted(set(group) & trace.observations.keys())
    for place, op in {call.place: call.op for call in calls if facts.is_of_gradients(call)}.items():
        yield at_line(ranks, f"calls {op} on gradients", place)


def _sum_evidence(ranks: tuple[int, ...], call: CallIdentity) -> Evidence:
    return at_line(ranks, f"puts the same numbers as the others into {call.op}", call.place)


def _parameters(trace: Trace, rank: int, scale: GradientScale) -> str:
    return names_of(trace.observations[rank], scale.parameters)
