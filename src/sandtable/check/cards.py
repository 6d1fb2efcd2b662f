"""Cards: every rank of a node must have one of its own, and keep its tensors there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sandtable.check.relations import at_line
from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity, name_ranks
from sandtable.trace import DeviceUse, EventKind, Observations, Trace
from sandtable.units import format_bytes

__all__ = ["all_ranks_on_one_device", "checkpoint_on_one_card", "memory_on_another_card", "wrong_device_ids"]

_CONTEXT_BYTES = 512 << 20
"""What a process takes of each card that it touches, before its first tensor."""

_LARGE = 0.02
"""The share of a card's memory from which tensors of other ranks on it are worth a warning."""


def all_ranks_on_one_device(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report ranks of one node that use the same card for collectives: NCCL refuses that."""
    for node, members in _nodes(trace).items():
        users: dict[int, list[tuple[int, DeviceUse]]] = defaultdict(list)
        for seen in members:
            for use in seen.device_uses:
                if use.is_call and use.device == _own_card(seen):
                    users[use.device].append((seen.rank, use))
        for device, calls in users.items():
            if len(calls) > 1:
                yield _duplicate(trace, node, device, calls)


def _duplicate(trace: Trace, node: int, device: int, calls: Sequence[tuple[int, DeviceUse]]) -> Finding:
    ranks = tuple(rank for rank, _ in calls)
    places = []
    for seen in (trace.observations[rank] for rank in ranks):
        places += [(use.place, seen.rank) for use in seen.device_uses if use.device == device]
    evidence = []
    for place in dict.fromkeys(place for place, _ in places):
        users = tuple(sorted({rank for other, rank in places if other == place}))
        if place.file and len(users) > 1:
            evidence.append(at_line(users, f"uses cuda:{device}", place))
    return Finding(
        rule="all-ranks-on-one-device",
        severity=Severity.ERROR,
        message=f"each rank of a node must have a GPU of its own, but {len(ranks)} ranks of node {node} use "
        f'cuda:{device}: NCCL refuses ("Duplicate GPU detected")',
        ranks=ranks,
        evidence=tuple(evidence),
        remedy='call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first use of the GPU, and use '
        'torch.device("cuda", local_rank) instead of a fixed number',
    )


def checkpoint_on_one_card(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report files of weights that ranks read onto the card of another rank."""
    found = [
        (seen, read, card, num_bytes)
        for seen in trace.observations.values()
        for read in seen.checkpoint_reads
        for card, num_bytes in read.bytes_on_device
        if card != _own_card(seen) and _own_card(seen) >= 0
    ]
    if not found:
        return
    ranks = tuple(sorted({seen.rank for seen, *_ in found}))
    total = sum(num_bytes for *_, num_bytes in found) + _CONTEXT_BYTES * len(ranks)
    capacity = trace.rank(ranks[0]).memory.capacity_bytes
    evidence = {
        read.place: at_line(
            (other.rank for other, same, *_ in found if same.place == read.place),
            f"reads {format_bytes(num_bytes)} onto cuda:{card}",
            read.place,
        )
        for _, read, card, num_bytes in found
    }
    yield Finding(
        rule="checkpoint-on-one-card",
        severity=Severity.ERROR if total > capacity > 0 else Severity.WARNING,
        message=f"each rank must read weights onto its own card or into host memory, but {len(ranks)} ranks read "
        f"theirs onto another rank's, where they and their contexts take {format_bytes(total)}",
        ranks=ranks,
        evidence=tuple(evidence.values()),
        remedy='torch.load(path, map_location="cpu"), or map_location=torch.device("cuda", local_rank)',
    )


def memory_on_another_card(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report ranks that make tensors on a card that is not theirs, other than by reading weights."""
    found = []
    for seen in trace.observations.values():
        loads = {read.place for read in seen.checkpoint_reads}
        own = _own_card(seen)
        others = {use.device for other in trace.observations.values() for use in other.device_uses if use.is_call}
        found += [
            (seen.rank, use)
            for use in seen.device_uses
            if own >= 0 and use.device not in (own, -1) and use.device in others and use.place not in loads
        ]
    if not found:
        return
    ranks = tuple(sorted({rank for rank, _ in found}))
    total = sum(use.num_bytes for _, use in found)
    capacity = trace.rank(ranks[0]).memory.capacity_bytes
    devices = ", ".join(f"cuda:{device}" for device in sorted({use.device for _, use in found}))
    yield Finding(
        rule="memory-on-another-card",
        severity=Severity.WARNING if total > _LARGE * capacity else Severity.NOTE,
        message=f"a rank should use its own card only, but {name_ranks(ranks)} {'take' if len(ranks) > 1 else 'takes'} "
        f"{format_bytes(total)} of {devices}, and as much again as a context needs ({format_bytes(_CONTEXT_BYTES)})",
        ranks=ranks,
        evidence=tuple(
            at_line((rank,), f"takes {format_bytes(use.num_bytes)} of cuda:{use.device}", use.place)
            for rank, use in found
        ),
        remedy='call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first use of the GPU',
    )


def wrong_device_ids(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report DDP wrappers that move the inputs to another card than the one their module is on."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for event in observed.of_kind(EventKind.WRAPPED):
            card, module_cards = event.facts.get("input_card", -1), event.facts.get("module_cards", ())
            if card >= 0 and len(module_cards) == 1 and card not in module_cards:
                text = f"wraps a module on cuda:{module_cards[0]} with device_ids=[{card}]"
                yield (Sighting(text=text, place=event.place),)

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="wrong-device-ids",
            severity=Severity.ERROR,
            message="DistributedDataParallel moves inputs to the card in device_ids, which must be the one that its "
            "module is on, but they differ",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="give it the card of the rank, device_ids=[local_rank], or leave device_ids and output_device out",
        )


def _nodes(trace: Trace) -> dict[int, list[Observations]]:
    nodes: dict[int, list[Observations]] = defaultdict(list)
    for rank, seen in sorted(trace.observations.items()):
        nodes[rank // max(trace.ranks_per_node, 1)].append(seen)
    return nodes


def _own_card(seen: Observations) -> int:
    """Return the card with which the rank takes part in collectives, the one with most memory; -1 if there is none."""
    totals: dict[int, int] = defaultdict(int)
    for use in seen.device_uses:
        totals[use.device] += use.num_bytes
    cards = {use.device for use in seen.device_uses if use.is_call}
    return max(cards or totals, key=lambda device: (totals[device], -device), default=-1)
