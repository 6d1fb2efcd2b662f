"""Traffic: the utilisation of each tier of links, and the sizes of the messages."""

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from sandtable.engine.timeline import Timeline, Transaction

__all__ = ["Bin", "BusyLink", "TierLoad", "TransactionSizes", "load_tiers", "size_transactions"]

NUM_BUSIEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyLink:
    """One link over the step: `utilisation` is the bytes it carried divided by the bytes it could have carried."""

    name: str
    tier: str
    bytes: float
    utilisation: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLoad:
    """All links of one tier over the step, and the fullest by name. Each direction is a separate link."""

    tier: str
    title: str
    num_links: int
    bandwidth_bytes_per_s: float
    nominal_bytes_per_s: float
    latency_ns: float
    bytes: float
    mean_utilisation: float
    max_utilisation: float
    busiest: tuple[BusyLink, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Calls of at least `from_bytes` and less than `to_bytes`, on all ranks, in one step."""

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
    algorithms: dict[str, int]
    """The number of calls per algorithm (ring, tree, ...) and protocol."""
    bins: tuple[Bin, ...]


def load_tiers(timeline: Timeline) -> tuple[TierLoad, ...]:
    """Return one row per tier, from the GPUs outwards."""
    topology, loads = timeline.topology, timeline.link_loads
    used, carried = loads.utilisation, loads.bytes_carried
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
                bytes=float(carried[link]),
                utilisation=float(used[link]),
                bandwidth_bytes_per_s=float(topology.bandwidth_bytes_per_s[link]),
            )
            for link in order
            if carried[link] > 0
        )
        rows.append(
            TierLoad(
                tier=tier.name,
                title=tier.title,
                num_links=tier.num_links,
                bandwidth_bytes_per_s=float(np.mean(topology.bandwidth_bytes_per_s[part])),
                nominal_bytes_per_s=float(np.mean(topology.nominal_bytes_per_s[part])),
                latency_ns=float(np.mean(topology.latency_ns[part])),
                bytes=float(np.sum(carried[part])),
                mean_utilisation=float(used[part].mean()),
                max_utilisation=float(used[part].max()),
                busiest=busiest,
            )
        )
    return tuple(rows)


def size_transactions(timeline: Timeline) -> tuple[TransactionSizes, ...]:
    """Count the calls of all ranks; the collective that moves most bytes comes first.

    Ranks of one class make the same calls, so the representative is counted once per rank of its class.
    """
    tallies: dict[tuple[str, str], _Tally] = defaultdict(_Tally)
    num_ranks: Counter[int] = Counter()
    for actor in timeline.actors:
        num_ranks[actor.rank_class.representative] += len(actor.ranks)
    for representative, times in num_ranks.items():
        for row in timeline.transactions(representative):
            tallies[row.op, row.axis].add(row, times=times)
    rows = [tally.sizes(op, axis) for (op, axis), tally in tallies.items()]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.op, row.axis)))


class _Tally:
    """Calls of one collective along one axis, by the power of two below their size."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        self.algorithms: Counter[str] = Counter()

    def add(self, row: Transaction, *, times: int) -> None:
        power = max(row.size_bytes, 1).bit_length() - 1
        self.counts[power] += row.count * times
        self.bytes[power] += row.count * times * row.size_bytes
        self.algorithms[f"{row.algorithm} {row.protocol}".strip()] += row.count * times

    def sizes(self, op: str, axis: str) -> TransactionSizes:
        return TransactionSizes(
            op=op,
            axis=axis,
            count=self.counts.total(),
            bytes=self.bytes.total(),
            algorithms=dict(self.algorithms.most_common()),
            bins=tuple(
                Bin(from_bytes=1 << power, to_bytes=2 << power, count=count, bytes=self.bytes[power])
                for power, count in sorted(self.counts.items())
            ),
        )
