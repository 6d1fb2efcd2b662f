"""Gloo: collectives of processes on CPUs over TCP, with the algorithms of torch's gloo backend.

The ring goes by rank, not by node, with one connection per neighbour. What a CPU does for each byte (copies into and
out of sockets, addition) overlaps with sending, so the slower of the two counts. Reduce-scatter is an all-reduce of
everything, of which each rank keeps its part.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sandtable.engine.network.collective_call import CollectiveCall
from sandtable.engine.network.flows import Flow, Steps, make_pattern
from sandtable.engine.network.transfer import Ints, LinkPattern, PatternCache, Transfer
from sandtable.errors import ClusterError

__all__ = ["GlooCosts", "plan", "plan_p2p"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooCosts:
    """The host's part: a call, a step (system calls, waking a thread), a byte sent or received, a byte added up.

    The defaults are nominal, for a server core of about 3 GHz; a lab measures its own.
    """

    call_ns: float = 50e3
    step_ns: float = 40e3
    copy_bytes_per_s: float = 3e9
    reduce_bytes_per_s: float = 4e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """An algorithm: phases of flows, steps, and bytes (per byte of the message) that a host copies and adds up."""

    name: str
    phases: tuple[tuple[Flow, ...], ...]
    num_steps: float
    copied: float
    added: float = 0.0


def plan(
    call: CollectiveCall, *, size_bytes: int, algorithm: str | None, cached: PatternCache, costs: GlooCosts
) -> Transfer:
    """Plan `call` as gloo does it. Of all algorithms, only "halving-doubling" for all-reduce can be chosen by name."""
    schedule = _schedule(call, algorithm)
    return _transfer(call, schedule, size_bytes, cached(schedule.name, lambda: _pattern(call, schedule)), costs)


def plan_p2p(
    call: CollectiveCall, *, size_bytes: int, cached: PatternCache, costs: GlooCosts, behind_bytes: int = 0
) -> Transfer:
    """Plan `size_bytes` from the first to the second of every pair in `call`.

    A sender waits for the notice that the receiver is ready, which travels on the connection on which the receiver
    itself sends. If it sends `behind_bytes` in the same batch, the notice queues behind them: what a network card could
    do both ways at once happens one after the other.
    """
    flow = Flow.of(call.topology, call.members[:, 0], call.members[:, 1], 1.0)
    schedule = _Schedule(name="direct", phases=((flow,),), num_steps=1.0, copied=1.0)
    transfer = _transfer(call, schedule, size_bytes, cached("p2p", lambda: _pattern(call, schedule)), costs)
    held_up_ns = 1e9 * behind_bytes * transfer.pattern.seconds_per_byte
    return replace(transfer, latency_ns=transfer.latency_ns + held_up_ns)


def _transfer(
    call: CollectiveCall, schedule: _Schedule, size_bytes: int, pattern: LinkPattern, costs: GlooCosts
) -> Transfer:
    host_s = schedule.copied / costs.copy_bytes_per_s + schedule.added / costs.reduce_bytes_per_s
    kept = (
        min(kind.nics.ring_efficiency for kind in call.kinds) if schedule.name == "ring" and call.spans_nodes else 1.0
    )
    return Transfer(
        latency_ns=costs.call_ns + costs.step_ns * pattern.num_steps + pattern.wire_ns,
        work_ns=1e9 * size_bytes * max(pattern.seconds_per_byte / kept, host_s),
        pattern=pattern,
        size_bytes=float(size_bytes),
        wire_share=1.0,
        sm_share=0.0,
        algorithm=schedule.name,
        protocol="tcp",
    )


def _pattern(call: CollectiveCall, schedule: _Schedule) -> LinkPattern:
    """Return the pattern of a schedule; every step waits for its slowest connection."""
    delay = schedule.num_steps * max(flow.longest_delay_ns for phase in schedule.phases for flow in phase)
    remote = schedule.num_steps if call.spans_nodes else 0.0
    steps = Steps(num_local=schedule.num_steps - remote, num_remote=remote, wire_ns=delay)
    return make_pattern(call.topology, schedule.phases, steps)


def _schedule(call: CollectiveCall, algorithm: str | None) -> _Schedule:
    if algorithm == "halving-doubling" and call.op == "all_reduce":
        return _halving_doubling(call)
    schedule = _SCHEDULES[call.op](call)
    if algorithm not in (None, schedule.name):
        raise ClusterError(
            f"the algorithm of gloo's {call.op} must be {schedule.name}, but got '{algorithm}'; omit it, or choose "
            "halving-doubling for all_reduce"
        )
    return schedule


def _ring(call: CollectiveCall, *, passes: float, added: float) -> _Schedule:
    """Send pieces of S/n, in segments, so that adding up one overlaps with receiving the next."""
    sent = passes * (call.size - 1) / call.size
    flow = Flow.of(call.topology, call.members.ravel(), np.roll(call.members, 1, axis=1).ravel(), sent)
    added *= (call.size - 1) / call.size
    return _Schedule(name="ring", phases=((flow,),), num_steps=passes * (call.size - 1), copied=2 * sent, added=added)


def _all_reduce(call: CollectiveCall) -> _Schedule:
    return _ring(call, passes=2.0, added=1.0)


def _all_gather(call: CollectiveCall) -> _Schedule:
    return _ring(call, passes=1.0, added=0.0)


def _broadcast(call: CollectiveCall) -> _Schedule:
    """Send along a binomial tree: all who have the message, twice as many every time, send all of it."""
    order = np.roll(call.members, -call.root, axis=1)
    phases, have = [], 1
    while have < call.size:
        more = min(have, call.size - have)
        flow = Flow.of(call.topology, order[:, :more].ravel(), order[:, have : have + more].ravel(), 1.0)
        phases.append((flow,))
        have += more
    return _Schedule(name="tree", phases=tuple(phases), num_steps=float(len(phases)), copied=float(len(phases)))


def _reduce(call: CollectiveCall) -> _Schedule:
    """Run a ring until each member has the sum of its part, then send all parts to the root."""
    ring = _ring(call, passes=1.0, added=1.0)
    share = (call.size - 1) / call.size
    return _Schedule(
        name="ring",
        phases=(*ring.phases, (_star(call, to_root=True),)),
        num_steps=ring.num_steps + 1,
        copied=ring.copied + share,
        added=ring.added,
    )


def _gather(call: CollectiveCall) -> _Schedule:
    return _Schedule(
        name="direct",
        phases=((_star(call, to_root=True),),),
        num_steps=1.0,
        copied=(call.size - 1) / call.size,
    )


def _scatter(call: CollectiveCall) -> _Schedule:
    return _Schedule(
        name="direct",
        phases=((_star(call, to_root=False),),),
        num_steps=1.0,
        copied=(call.size - 1) / call.size,
    )


def _all_to_all(call: CollectiveCall) -> _Schedule:
    """Send from everyone to everyone at once."""
    size = call.size
    shifts = np.arange(1, size)
    src = np.broadcast_to(call.members[:, :, None], (*call.members.shape, size - 1)).ravel()
    dst = call.members[:, (np.arange(size)[:, None] + shifts) % size].ravel()
    flow = Flow.of(call.topology, src, dst, 1.0 / size)
    return _Schedule(name="direct", phases=((flow,),), num_steps=1.0, copied=2.0 * (size - 1) / size)


def _barrier(call: CollectiveCall) -> _Schedule:
    """Disseminate: in round k everyone signals the member 2^k further."""
    rounds = int(np.ceil(np.log2(call.size)))
    phases = tuple((_exchange(call, 2**k, weight=1.0),) for k in range(rounds))
    return _Schedule(name="dissemination", phases=phases, num_steps=float(rounds), copied=0.0)


def _halving_doubling(call: CollectiveCall) -> _Schedule:
    """Halve the data with ever more distant partners, then double it again (Thakur et al. 2005; Goyal et al. 2017).

    As many bytes as a ring in 2 log2(n) steps instead of 2(n-1).
    """
    rounds = int(np.ceil(np.log2(call.size)))
    halving = [(_exchange(call, 2**step, weight=0.5 ** (step + 1)),) for step in range(rounds)]
    sent = 2.0 * (1 - 0.5**rounds)
    return _Schedule(
        name="halving-doubling",
        phases=(*halving, *halving[::-1]),
        num_steps=2.0 * rounds,
        copied=2 * sent,
        added=sent / 2,
    )


def _exchange(call: CollectiveCall, distance: int, weight: float) -> Flow:
    """Return the flow from everyone to the member `distance` further."""
    return Flow.of(call.topology, call.members.ravel(), np.roll(call.members, -distance, axis=1).ravel(), weight)


def _star(call: CollectiveCall, *, to_root: bool) -> Flow:
    """Return the flow of 1/n of the message between the root and every other member."""
    others: Ints = np.delete(call.members, call.root, axis=1).ravel()
    roots = np.repeat(call.roots, call.size - 1)
    src, dst = (others, roots) if to_root else (roots, others)
    return Flow.of(call.topology, src, dst, 1.0 / call.size)


_SCHEDULES: dict[str, Callable[[CollectiveCall], _Schedule]] = {
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
