"""Traffic: how full each tier of links is, and how large the messages are."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sandtable.report.needs import Timeline
from sandtable.units import NS_PER_S

__all__ = ["Bin", "BusyLink", "TierLoad", "TransactionSizes", "load_tiers", "size_transactions"]

NUM_BUSIEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLink:
    """One link over the step: `utilisation` is bytes carried against bytes that it could carry in that time."""

    name: str
    tier: str
    bytes: float
    busy: float
    utilisation: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLoad:
    """All links of one tier over the step, and the fullest of them by name. Each direction is a link of its own."""

    tier: str
    title: str
    num_links: int
    bandwidth_bytes_per_s: float
    nominal_bytes_per_s: float
    latency_ns: float
    bytes: float
    mean_utilisation: float
    max_utilisation: float
    mean_busy: float
    max_busy: float
    busiest: tuple[BusyLink, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Calls whose size is at least `from_bytes` and below `to_bytes`, on all ranks, in one step."""

    from_bytes: int
    to_bytes: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSizes:
    """The sizes of one collective's calls along one axis, in powers of two."""

    op: str
    axis: str
    count: int
    bytes: int
    bins: tuple[Bin, ...]


def load_tiers(timeline: Timeline) -> tuple[TierLoad, ...]:
    """One row a tier, from the GPUs outwards."""
    topology, loads = timeline.topology, timeline.links()
    seconds = timeline.step_ns / NS_PER_S
    capacity = np.maximum(topology.bandwidth_bytes_per_s * seconds, 1e-9)
    used = np.asarray(loads.bytes, dtype=np.float64) / capacity
    busy = np.asarray(loads.busy, dtype=np.float64)
    rows = []
    for tier in topology.tiers:
        part = slice(tier.first, tier.first + tier.num_links)
        if not tier.num_links:
            continue
        order = np.argsort(-used[part], kind="stable")[:NUM_BUSIEST] + tier.first
        busiest = tuple(
            BusyLink(
                name=topology.link_name(int(link)),
                tier=tier.name,
                bytes=float(loads.bytes[link]),
                busy=float(busy[link]),
                utilisation=float(used[link]),
                bandwidth_bytes_per_s=float(topology.bandwidth_bytes_per_s[link]),
            )
            for link in order
            if loads.bytes[link] > 0
        )
        rows.append(
            TierLoad(
                tier=tier.name,
                title=tier.title,
                num_links=tier.num_links,
                bandwidth_bytes_per_s=float(np.mean(topology.bandwidth_bytes_per_s[part])),
                nominal_bytes_per_s=float(np.mean(topology.nominal_bytes_per_s[part])),
                latency_ns=float(np.mean(topology.latency_ns[part])),
                bytes=float(np.sum(loads.bytes[part])),
                mean_utilisation=float(used[part].mean()),
                max_utilisation=float(used[part].max()),
                mean_busy=float(busy[part].mean()),
                max_busy=float(busy[part].max()),
                busiest=busiest,
            )
        )
    return tuple(rows)


def size_transactions(timeline: Timeline) -> tuple[TransactionSizes, ...]:
    """Counts of all ranks together, the collective that moves most first."""
    found: dict[tuple[str, str], dict[int, tuple[int, int]]] = defaultdict(lambda: defaultdict(lambda: (0, 0)))
    for actor in timeline.actors:
        for row in timeline.transactions(actor.representative):
            power = max(row.size_bytes, 1).bit_length() - 1
            bins = found[row.op, row.axis]
            count, size = bins[power]
            times = row.count * len(actor.ranks)
            bins[power] = (count + times, size + times * row.size_bytes)
    return tuple(sorted(_sizes(found), key=lambda row: (-row.bytes, row.op, row.axis)))


def _sizes(found: dict[tuple[str, str], dict[int, tuple[int, int]]]) -> Iterable[TransactionSizes]:
    for (op, axis), bins in found.items():
        rows = tuple(
            Bin(from_bytes=1 << power, to_bytes=2 << power, count=count, bytes=size)
            for power, (count, size) in sorted(bins.items())
        )
        yield TransactionSizes(
            op=op, axis=axis, count=sum(row.count for row in rows), bytes=sum(row.bytes for row in rows), bins=rows
        )
