"""NCCL: of all algorithms and protocols that the machines allow, the one that is done first.

NCCL's tuner does the same with its own table of latencies and bandwidths. Here both choice and duration come from one
model, so that more bandwidth is never slower and more bytes never faster.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.direct import Direct
from sandtable.engine.network.hierarchical import Hierarchical
from sandtable.engine.network.job import Job, bus_factor
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
from sandtable.engine.network.transfer import Pattern, Transfer
from sandtable.engine.network.tree import Tree
from sandtable.errors import ClusterError

__all__ = ["ALGORITHMS", "plan", "plan_p2p"]

Recall = Callable[[str, Callable[[], Pattern]], Pattern]

ALGORITHMS: tuple[Algorithm, ...] = (Ring(), Tree(), Nvls(), NvlsTree(), Hierarchical(), Direct())

_BYTES_PER_CHANNEL = 32 * 1024  # nccl: one channel more for every 512 threads x 64 bytes
_CHANNELS_PER_RAIL = 2  # nccl: rings between nodes are doubled, one pair for each way out of a node


def plan(job: Job, *, size_bytes: int, algorithm: str | None, recall: Recall) -> Transfer:
    """The quickest way to do `job`, or the quickest with `algorithm`. `recall(name, make)` keeps patterns."""
    generation = _generation(job)
    plans: list[Transfer] = []
    for choice in _choices(job, algorithm):
        pattern = recall(choice.name, lambda choice=choice: choice.pattern(job, generation))  # type: ignore[misc]
        drive = _Drive(name=choice.name, speeds=choice.speeds, num_channels=choice.num_channels(generation))
        plans.extend(_with_protocols(pattern, drive, generation, job, size_bytes))
    return min(plans, key=lambda each: each.total_ns)


def plan_p2p(job: Job, *, size_bytes: int, recall: Recall) -> Transfer:
    """`size_bytes` from the first to the second of every pair in `job`."""
    generation = _generation(job)
    src, dst = job.members[:, 0], job.members[:, 1]
    pattern = recall("p2p", lambda: p2p_pattern(job.topology, src, dst))
    drive = _Drive(name="direct", speeds="p2p", num_channels=generation.num_p2p_channels)
    plans = _with_protocols(pattern, drive, generation, job, size_bytes)
    return min(plans, key=lambda each: each.total_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drive:
    """Who moves the data: constants to go by, and thread blocks."""

    name: str
    speeds: str
    num_channels: int


def _choices(job: Job, name: str | None) -> list[Algorithm]:
    possible = [each for each in ALGORITHMS if each.is_possible(job)]
    chosen = [each for each in possible if (each.name == name if name else each.is_automatic)]
    if not chosen:
        names = ", ".join(each.name for each in possible)
        raise ClusterError(
            f"the algorithm of this {job.op} must be one of {names} on these machines, but got '{name}'; leave it open"
        )
    return chosen


def _generation(job: Job) -> Generation:
    """The constants of the oldest device among the members'."""
    return generation_of(min((kind.device for kind in job.kinds), key=lambda device: device.capability))


def _with_protocols(
    pattern: Pattern, drive: _Drive, generation: Generation, job: Job, size_bytes: int
) -> Iterator[Transfer]:
    """`pattern` with every protocol there is for it."""
    num_sms = min(kind.device.num_sms for kind in job.kinds)
    most = drive.num_channels
    if job.spans_nodes:
        most = min(most, _CHANNELS_PER_RAIL * int(job.layout.num_rails.max()))
    channels = min(most, max(1, -(-size_bytes // _BYTES_PER_CHANNEL)))
    for protocol in (LL, LL128, SIMPLE):
        speeds = generation.speeds.get((drive.speeds, protocol))
        if speeds is None or (protocol == LL128 and not job.has_nvlink):
            continue
        yield Transfer(
            latency_ns=_latency_ns(pattern, speeds, generation.speeds["tree", protocol], protocol, job),
            work_ns=_work_ns(pattern, speeds, job, size_bytes),
            pattern=pattern,
            size_bytes=float(size_bytes),
            wire_share=speeds.wire_share,
            sm_share=float(np.minimum(1.0, channels / num_sms)),
            algorithm=drive.name,
            protocol=protocol,
        )


def _work_ns(pattern: Pattern, speeds: Speeds, job: Job, size_bytes: int) -> float:
    """Time on the fullest link, or at the protocol's highest rate, and the filling of the pipeline."""
    rate_share = speeds.wire_share * _medium_share(speeds, size_bytes)
    wire_ns = 1e9 * size_bytes * pattern.seconds_per_byte / rate_share
    bound = speeds.max_bytes_per_s[min(job.layout.max_nodes, 3) - 1]
    if bound:
        wire_ns = max(wire_ns, 1e9 * size_bytes * bus_factor(job.op, job.size) / bound)
    return wire_ns + speeds.ramp_ns * wire_ns / (wire_ns + speeds.ramp_scale_ns)


def _medium_share(speeds: Speeds, size_bytes: int) -> float:
    """Between two sizes of the table, in proportion to the doublings."""
    doublings = np.log2(max(size_bytes, 64) / 64)
    shares = (*speeds.medium_shares, 1.0)
    return float(np.interp(doublings, np.arange(len(shares)), shares))


def _latency_ns(pattern: Pattern, speeds: Speeds, tree: Speeds, protocol: str, job: Job) -> float:
    """What the first byte needs: the kernel's start, then hop after hop."""
    local_ns = speeds.nvlink_ns if job.has_nvlink else speeds.pcie_ns
    remote_ns = speeds.net_ns
    if pattern.num_remote:
        local_ns = max(local_ns, NET_OVERHEAD_NS[protocol])
        if job.layout.max_local == 1:  # nothing within the node hides the network's latency
            remote_ns = max(remote_ns, tree.net_ns)
    steps_ns = pattern.num_local * local_ns + pattern.num_remote * remote_ns
    return speeds.base_ns + steps_ns + pattern.wire_ns * speeds.num_trips
