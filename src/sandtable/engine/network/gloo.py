"""Gloo: collectives of processes on CPUs over TCP, with the algorithms that torch's gloo backend uses.

The ring goes by rank, not by node, one connection a neighbour. What a CPU does for each byte (copies into and out of
sockets, addition) happens beside the sending, so the slower of the two counts. Reduce-scatter is an all-reduce of
everything, of which each rank keeps its part.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sandtable.engine.network.flows import Flow, Steps, draw
from sandtable.engine.network.job import Job
from sandtable.engine.network.transfer import Ints, Pattern, Transfer
from sandtable.errors import ClusterError

__all__ = ["GlooCosts", "plan", "plan_p2p"]

Recall = Callable[[str, Callable[[], Pattern]], Pattern]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooCosts:
    """The host's part: a call, a step (system calls, waking a thread), a byte sent or received, a byte added up.

    The defaults are nominal, those of a server core of about 3 GHz; a lab measures its own.
    """

    call_ns: float = 50e3
    step_ns: float = 40e3
    copy_bytes_per_s: float = 3e9
    reduce_bytes_per_s: float = 4e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """An algorithm: phases of flows, steps, and bytes (per byte of the message) that a host copies and adds up."""

    name: str
    phases: tuple[tuple[Flow, ...], ...]
    num_steps: float
    copied: float
    added: float = 0.0


def plan(job: Job, *, size_bytes: int, algorithm: str | None, recall: Recall, costs: GlooCosts) -> Transfer:
    """`job` as gloo does it; of all algorithms only "halving-doubling" for all-reduce can be asked for by name."""
    way = _way(job, algorithm)
    return _transfer(job, way, size_bytes, recall(way.name, lambda: _draw(job, way)), costs)


def plan_p2p(job: Job, *, size_bytes: int, recall: Recall, costs: GlooCosts, behind_bytes: int = 0) -> Transfer:
    """`size_bytes` from the first to the second of every pair in `job`.

    A sender waits for the word that the receiver is ready, and that word travels on the connection on which the
    receiver itself sends. If it sends `behind_bytes` in the same batch, the word queues behind them: what a network
    card could do both ways at once is done one after the other.
    """
    flow = Flow.of(job.topology, job.members[:, 0], job.members[:, 1], 1.0)
    way = _Way(name="direct", phases=((flow,),), num_steps=1.0, copied=1.0)
    transfer = _transfer(job, way, size_bytes, recall("p2p", lambda: _draw(job, way)), costs)
    held_up_ns = 1e9 * behind_bytes * transfer.pattern.seconds_per_byte
    return replace(transfer, latency_ns=transfer.latency_ns + held_up_ns)


def _transfer(job: Job, way: _Way, size_bytes: int, pattern: Pattern, costs: GlooCosts) -> Transfer:
    host_s = way.copied / costs.copy_bytes_per_s + way.added / costs.reduce_bytes_per_s
    kept = min(kind.nics.ring_efficiency for kind in job.kinds) if way.name == "ring" and job.spans_nodes else 1.0
    return Transfer(
        latency_ns=costs.call_ns + costs.step_ns * pattern.num_steps + pattern.wire_ns,
        work_ns=1e9 * size_bytes * max(pattern.seconds_per_byte / kept, host_s),
        pattern=pattern,
        size_bytes=float(size_bytes),
        wire_share=1.0,
        sm_share=0.0,
        algorithm=way.name,
        protocol="tcp",
    )


def _draw(job: Job, way: _Way) -> Pattern:
    """Every step waits for its slowest connection."""
    delay = way.num_steps * max(flow.longest_delay_ns for phase in way.phases for flow in phase)
    remote = way.num_steps if job.spans_nodes else 0.0
    steps = Steps(num_local=way.num_steps - remote, num_remote=remote, wire_ns=delay)
    return draw(job.topology, way.phases, steps)


def _way(job: Job, algorithm: str | None) -> _Way:
    if algorithm == "halving-doubling" and job.op == "all_reduce":
        return _halving_doubling(job)
    way = _WAYS[job.op](job)
    if algorithm not in (None, way.name):
        raise ClusterError(
            f"the algorithm of gloo's {job.op} must be {way.name}, but got '{algorithm}'; leave it open, or ask for "
            "halving-doubling with all_reduce"
        )
    return way


def _ring(job: Job, *, passes: float, added: float) -> _Way:
    """Pieces of S/n, in segments, so that adding up one overlaps with receiving the next."""
    sent = passes * (job.size - 1) / job.size
    flow = Flow.of(job.topology, job.members.ravel(), np.roll(job.members, 1, axis=1).ravel(), sent)
    added *= (job.size - 1) / job.size
    return _Way(name="ring", phases=((flow,),), num_steps=passes * (job.size - 1), copied=2 * sent, added=added)


def _all_reduce(job: Job) -> _Way:
    return _ring(job, passes=2.0, added=1.0)


def _all_gather(job: Job) -> _Way:
    return _ring(job, passes=1.0, added=0.0)


def _broadcast(job: Job) -> _Way:
    """Binomial tree: those who have it, twice as many every time, send all of it."""
    order = np.roll(job.members, -job.root, axis=1)
    phases, have = [], 1
    while have < job.size:
        more = min(have, job.size - have)
        flow = Flow.of(job.topology, order[:, :more].ravel(), order[:, have : have + more].ravel(), 1.0)
        phases.append((flow,))
        have += more
    return _Way(name="tree", phases=tuple(phases), num_steps=float(len(phases)), copied=float(len(phases)))


def _reduce(job: Job) -> _Way:
    """A ring until each member has the sum of its part, then all parts to the root."""
    ring = _ring(job, passes=1.0, added=1.0)
    share = (job.size - 1) / job.size
    return _Way(
        name="ring",
        phases=(*ring.phases, (_star(job, to_root=True),)),
        num_steps=ring.num_steps + 1,
        copied=ring.copied + share,
        added=ring.added,
    )


def _gather(job: Job) -> _Way:
    return _Way(
        name="direct",
        phases=((_star(job, to_root=True),),),
        num_steps=1.0,
        copied=(job.size - 1) / job.size,
    )


def _scatter(job: Job) -> _Way:
    return _Way(
        name="direct",
        phases=((_star(job, to_root=False),),),
        num_steps=1.0,
        copied=(job.size - 1) / job.size,
    )


def _all_to_all(job: Job) -> _Way:
    """Everyone with everyone at once."""
    size = job.size
    shifts = np.arange(1, size)
    src = np.broadcast_to(job.members[:, :, None], (*job.members.shape, size - 1)).ravel()
    dst = job.members[:, (np.arange(size)[:, None] + shifts) % size].ravel()
    flow = Flow.of(job.topology, src, dst, 1.0 / size)
    return _Way(name="direct", phases=((flow,),), num_steps=1.0, copied=2.0 * (size - 1) / size)


def _barrier(job: Job) -> _Way:
    """Dissemination: in round k everyone signals the member 2^k further."""
    rounds = int(np.ceil(np.log2(job.size)))
    phases = tuple((_exchange(job, 2**k, weight=1.0),) for k in range(rounds))
    return _Way(name="dissemination", phases=phases, num_steps=float(rounds), copied=0.0)


def _halving_doubling(job: Job) -> _Way:
    """Halve the data with ever more distant partners, then double it again (Thakur et al. 2005; Goyal et al. 2017).

    As many bytes as a ring in 2 log2(n) steps instead of 2(n-1).
    """
    rounds = int(np.ceil(np.log2(job.size)))
    halving = [(_exchange(job, 2**k, weight=0.5 ** (k + 1)),) for k in range(rounds)]
    sent = 2.0 * (1 - 0.5**rounds)
    return _Way(
        name="halving-doubling",
        phases=(*halving, *halving[::-1]),
        num_steps=2.0 * rounds,
        copied=2 * sent,
        added=sent / 2,
    )


def _exchange(job: Job, distance: int, weight: float) -> Flow:
    """Everyone sends to the member `distance` further."""
    return Flow.of(job.topology, job.members.ravel(), np.roll(job.members, -distance, axis=1).ravel(), weight)


def _star(job: Job, *, to_root: bool) -> Flow:
    """1/n of the message between the root and every other member."""
    others: Ints = np.delete(job.members, job.root, axis=1).ravel()
    roots = np.repeat(job.roots, job.size - 1)
    src, dst = (others, roots) if to_root else (roots, others)
    return Flow.of(job.topology, src, dst, 1.0 / job.size)


_WAYS: dict[str, Callable[[Job], _Way]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _all_reduce,
    "scatter": _scatter,
}
