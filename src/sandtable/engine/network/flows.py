"""From who sends what to whom, to how much crosses each link."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sandtable.cluster.topology import Topology
from sandtable.engine.network.transfer import Floats, Ints, Pattern

__all__ = ["Flow", "Steps", "draw", "wire_ns"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """Rank `src[i]` sends `weight[i]` bytes to rank `dst[i]` for each byte of the message."""

    src: Ints
    dst: Ints
    weight: Floats | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """One after the other: `num_local` hops within nodes, `num_remote` between them, `wire_ns` of delay on the way."""

    num_local: float
    num_remote: float = 0.0
    wire_ns: float = 0.0


def draw(topology: Topology, phases: Sequence[Sequence[Flow]], steps: Steps, *, slowest: float = 0.0) -> Pattern:
    """The pattern of `phases` that follow each other, the flows of one phase running together.

    A phase takes as long as its fullest link. `slowest` is the seconds per byte that the algorithm needs at least.
    """
    total = np.zeros(topology.num_links)
    seconds = 0.0
    for flows in phases:
        carried = np.zeros(topology.num_links)
        for flow in flows:
            carried += _carry(topology, flow)
        seconds += float((carried / topology.bandwidth_bytes_per_s).max(initial=0.0))
        total += carried
    links = np.flatnonzero(total).astype(np.int32)
    return Pattern(
        links=links,
        bytes_per_byte=total[links],
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s[links],
        seconds_per_byte=max(seconds, slowest),
        num_local=steps.num_local,
        num_remote=steps.num_remote,
        wire_ns=steps.wire_ns,
    )


def wire_ns(topology: Topology, src: Ints, dst: Ints) -> Floats:
    """The delay of the wire from each `src` to its `dst`."""
    return topology.route_latency_ns(topology.routes(src, dst))


def _carry(topology: Topology, flow: Flow) -> Floats:
    """Bytes on every link of the cluster."""
    if not len(flow.src):
        return np.zeros(topology.num_links)
    routes = topology.routes(flow.src, flow.dst)
    used = routes >= 0
    if isinstance(flow.weight, float):
        return np.bincount(routes[used], minlength=topology.num_links) * flow.weight
    weights = np.broadcast_to(flow.weight[:, None], routes.shape)[used]
    return np.bincount(routes[used], weights=weights, minlength=topology.num_links)
