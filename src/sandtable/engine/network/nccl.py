"""NCCL: the fastest of all algorithms and protocols that the machines allow.

NCCL's tuner does the same with its own table of latencies and bandwidths. Here one model gives both choice and
duration, so that more bandwidth is never slower and more bytes are never faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.collective_call import CollectiveCall, bus_factor
from sandtable.engine.network.direct import Direct
from sandtable.engine.network.hierarchical import HierarchicalAllReduce
from sandtable.engine.network.nccl_constants import (
    LL,
    LL128,
    NET_OVERHEAD_NS,
    SIMPLE,
    Generation,
    Speeds,
    generation_of,
)
from sandtable.engine.network.nvls import Nvls, NvlsTree
from sandtable.engine.network.p2p import p2p_pattern
from sandtable.engine.network.ring import Ring
from sandtable.engine.network.transfer import LinkPattern, PatternCache, Transfer
from sandtable.engine.network.tree import Tree
from sandtable.errors import ClusterError

__all__ = ["ALGORITHMS", "plan", "plan_p2p"]

ALGORITHMS: tuple[Algorithm, ...] = (Ring(), Tree(), Nvls(), NvlsTree(), HierarchicalAllReduce(), Direct())

_BYTES_PER_CHANNEL = 32 * 1024  # nccl: one more channel for every 512 threads x 64 bytes
_CHANNELS_PER_RAIL = 2  # nccl: rings between nodes are doubled, one pair for each way out of a node


def plan(call: CollectiveCall, *, size_bytes: int, algorithm: str | None, cached: PatternCache) -> Transfer:
    """Plan the fastest way to do `call`, or the fastest with `algorithm`."""
    generation = _generation(call)
    plans: list[Transfer] = []
    for option in _options(call, algorithm):
        candidate = _Candidate(
            name=option.name,
            speeds=option.speeds,
            num_channels=option.num_channels(generation),
            pattern=cached(option.name, partial(option.pattern, call, generation)),
        )
        plans.extend(_with_protocols(candidate, generation, call, size_bytes))
    return min(plans, key=lambda transfer: transfer.total_ns)


def plan_p2p(call: CollectiveCall, *, size_bytes: int, cached: PatternCache) -> Transfer:
    """Plan `size_bytes` from the first to the second of every pair in `call`."""
    generation = _generation(call)
    src, dst = call.members[:, 0], call.members[:, 1]
    pattern = cached("p2p", lambda: p2p_pattern(call.topology, src, dst))
    candidate = _Candidate(name="direct", speeds="p2p", num_channels=generation.num_p2p_channels, pattern=pattern)
    plans = _with_protocols(candidate, generation, call, size_bytes)
    return min(plans, key=lambda transfer: transfer.total_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """An algorithm before its protocol is chosen: its links, the constants it uses, its thread blocks."""

    name: str
    speeds: str
    num_channels: int
    pattern: LinkPattern


def _options(call: CollectiveCall, name: str | None) -> list[Algorithm]:
    possible = [algorithm for algorithm in ALGORITHMS if algorithm.is_possible(call)]
    chosen = [algorithm for algorithm in possible if (algorithm.name == name if name else algorithm.is_automatic)]
    if not chosen:
        names = ", ".join(algorithm.name for algorithm in possible)
        raise ClusterError(
            f"the algorithm of this {call.op} must be one of {names} on these machines, but got '{name}'; omit it"
        )
    return chosen


def _generation(call: CollectiveCall) -> Generation:
    """Return the constants of the oldest device among the members."""
    return generation_of(min((kind.device for kind in call.kinds), key=lambda device: device.capability))


def _with_protocols(
    candidate: _Candidate, generation: Generation, call: CollectiveCall, size_bytes: int
) -> Iterator[Transfer]:
    """Yield the transfer of `candidate` with every protocol there is for it."""
    pattern = candidate.pattern
    num_sms = min(kind.device.num_sms for kind in call.kinds)
    most = candidate.num_channels
    if call.spans_nodes:
        most = min(most, _CHANNELS_PER_RAIL * int(call.layout.num_rails.max()))
    channels = min(most, max(1, -(-size_bytes // _BYTES_PER_CHANNEL)))
    for protocol in (LL, LL128, SIMPLE):
        speeds = generation.speeds.get((candidate.speeds, protocol))
        if speeds is None or (protocol == LL128 and not call.has_nvlink):
            continue
        yield Transfer(
            latency_ns=_latency_ns(pattern, speeds, generation.speeds["tree", protocol], protocol, call),
            work_ns=_work_ns(pattern, speeds, call, size_bytes),
            pattern=pattern,
            size_bytes=float(size_bytes),
            wire_share=speeds.wire_share,
            sm_share=float(np.minimum(1.0, channels / num_sms)),
            algorithm=candidate.name,
            protocol=protocol,
        )


def _work_ns(pattern: LinkPattern, speeds: Speeds, call: CollectiveCall, size_bytes: int) -> float:
    """Return the time on the fullest link, or at the protocol's highest rate, and the filling of the pipeline."""
    rate_share = speeds.wire_share * _medium_share(speeds, size_bytes)
    wire_ns = 1e9 * size_bytes * pattern.seconds_per_byte / rate_share
    bound = speeds.max_bytes_per_s[min(call.layout.max_nodes, 3) - 1]
    if bound:
        wire_ns = max(wire_ns, 1e9 * size_bytes * bus_factor(call.op, call.size) / bound)
    return wire_ns + speeds.ramp_ns * wire_ns / (wire_ns + speeds.ramp_scale_ns)


def _medium_share(speeds: Speeds, size_bytes: int) -> float:
    """Interpolate between two sizes of the table, in proportion to the doublings."""
    doublings = np.log2(max(size_bytes, 64) / 64)
    shares = (*speeds.medium_shares, 1.0)
    return float(np.interp(doublings, np.arange(len(shares)), shares))


def _latency_ns(pattern: LinkPattern, speeds: Speeds, tree: Speeds, protocol: str, call: CollectiveCall) -> float:
    """Return the time of the first byte: the kernel's start, then hop after hop."""
    local_ns = speeds.nvlink_ns if call.has_nvlink else speeds.pcie_ns
    remote_ns = speeds.net_ns
    if pattern.num_remote:
        local_ns = max(local_ns, NET_OVERHEAD_NS[protocol])
        if call.layout.max_local == 1:  # nothing within the node hides the network's latency
            remote_ns = max(remote_ns, tree.net_ns)
    steps_ns = pattern.num_local * local_ns + pattern.num_remote * remote_ns
    return speeds.base_ns + steps_ns + pattern.wire_ns * speeds.num_trips
