"""Flows: who sends what to whom, and how much of it crosses each link."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from sandtable.cluster.topology import Topology
from sandtable.engine.network.transfer import Floats, Ints, LinkPattern

__all__ = ["Flow", "Steps", "make_pattern"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """Rank `src[i]` sends `weight[i]` bytes to rank `dst[i]` over `routes[i]` per byte of the message."""

    topology: Topology
    src: Ints
    dst: Ints
    weight: Floats | float
    routes: Ints

    @classmethod
    def of(cls, topology: Topology, src: Ints, dst: Ints, weight: Floats | float) -> Self:
        return cls(topology=topology, src=src, dst=dst, weight=weight, routes=topology.routes(src, dst))

    @property
    def delay_ns(self) -> Floats:
        """The delay of each sender's wire."""
        return self.topology.route_latency_ns(self.routes)

    @property
    def longest_delay_ns(self) -> float:
        return float(self.delay_ns.max(initial=0.0))

    def reversed(self) -> Self:
        """Return the same flow in the other direction."""
        return self.of(self.topology, self.dst, self.src, self.weight)

    def carried(self) -> Floats:
        """Return the bytes on every link of the cluster."""
        used = self.routes >= 0
        num_links = self.topology.num_links
        if isinstance(self.weight, float):
            return (np.bincount(self.routes[used], minlength=num_links) * self.weight).astype(np.float64)
        weights = np.broadcast_to(self.weight[:, None], self.routes.shape)[used]
        return np.bincount(self.routes[used], weights=weights, minlength=num_links).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps in sequence: `num_local` hops within nodes, `num_remote` between them, `wire_ns` of delay on the way."""

    num_local: float
    num_remote: float = 0.0
    wire_ns: float = 0.0


def make_pattern(
    topology: Topology, phases: Sequence[Sequence[Flow]], steps: Steps, *, slowest: float = 0.0
) -> LinkPattern:
    """Return the pattern of `phases` in sequence, in each of which all flows run together.

    A phase takes as long as its fullest link. `slowest` is the least seconds per byte that the algorithm needs.
    """
    total = np.zeros(topology.num_links)
    seconds = 0.0
    for flows in phases:
        carried = np.sum([flow.carried() for flow in flows if len(flow.src)], axis=0, initial=0.0)
        carried = np.broadcast_to(carried, total.shape)
        seconds += float((carried / topology.bandwidth_bytes_per_s).max(initial=0.0))
        total += carried
    links = np.flatnonzero(total).astype(np.int32)
    return LinkPattern(
        links=links,
        bytes_per_byte=total[links],
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s[links],
        seconds_per_byte=max(seconds, slowest),
        num_local=steps.num_local,
        num_remote=steps.num_remote,
        wire_ns=steps.wire_ns,
    )
