"""Plan calls on one topology, and remember what does not depend on their size."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sandtable.cluster.topology import Topology
from sandtable.engine.network import gloo, nccl
from sandtable.engine.network.collective_call import CollectiveCall, message_bytes
from sandtable.engine.network.gloo import GlooCosts
from sandtable.engine.network.transfer import LinkPattern, PatternCache, Transfer
from sandtable.errors import TraceError

__all__ = ["BACKENDS", "Planner", "plan_collective", "plan_p2p"]

BACKENDS = ("nccl", "gloo")


def plan_collective(
    op: str,
    *,
    bytes_in: int,
    bytes_out: int,
    groups: npt.ArrayLike,
    topology: Topology,
    backend: str = "nccl",
    root: int = 0,
    algorithm: str | None = None,
) -> Transfer:
    """Plan `op` by every row of `groups` at the same time. For many calls, `Planner` is quicker."""
    planner = Planner(topology, backend=backend)
    return planner.collective(op, bytes_in=bytes_in, bytes_out=bytes_out, groups=groups, root=root, algorithm=algorithm)


def plan_p2p(
    num_bytes: int, *, src: npt.ArrayLike, dst: npt.ArrayLike, topology: Topology, backend: str = "nccl"
) -> Transfer:
    """Plan a message of `num_bytes` from every rank `src[i]` to `dst[i]` at the same time."""
    return Planner(topology, backend=backend).p2p(num_bytes, src=src, dst=dst)


class Planner:
    """Plans calls on `topology`. It remembers which links a call uses, so that one of another size costs little."""

    def __init__(self, topology: Topology, *, backend: str = "nccl", gloo_costs: GlooCosts | None = None) -> None:
        if backend not in BACKENDS:
            raise TraceError(f"the backend must be one of {', '.join(BACKENDS)}, but got '{backend}'; choose one")
        self.topology, self.backend = topology, backend
        self._gloo_costs = gloo_costs or GlooCosts()
        self._calls: dict[tuple[object, ...], CollectiveCall] = {}
        self._patterns: dict[tuple[object, ...], LinkPattern] = {}

    def collective(
        self,
        op: str,
        *,
        bytes_in: int,
        bytes_out: int,
        groups: npt.ArrayLike,
        root: int = 0,
        algorithm: str | None = None,
    ) -> Transfer:
        """Plan `op` by every row of `groups`; a member puts in `bytes_in` and gets `bytes_out`.

        `root` is the root's position in its row, for rooted operations. `algorithm` forces one instead of the quickest.
        """
        key, call = self._call(op, np.asarray(groups), root)
        size_bytes = message_bytes(op, bytes_in, bytes_out, call.size)
        if call.size == 1:
            return _empty_transfer(size_bytes)
        cached = self._cache_for(key)
        if self.backend == "gloo":
            return gloo.plan(call, size_bytes=size_bytes, algorithm=algorithm, cached=cached, costs=self._gloo_costs)
        return nccl.plan(call, size_bytes=size_bytes, algorithm=algorithm, cached=cached)

    def p2p(self, num_bytes: int, *, src: npt.ArrayLike, dst: npt.ArrayLike, behind_bytes: int = 0) -> Transfer:
        """Plan `num_bytes` from every rank `src[i]` to `dst[i]`; nothing is sent to oneself.

        `behind_bytes` are sent from `dst[i]` to `src[i]` in one batch with the receiving, which matters only to gloo.
        """
        pairs = np.stack(np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst)), axis=1)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        if not len(pairs):
            return _empty_transfer(num_bytes)
        key, call = self._call("send", pairs, 0)
        if self.backend == "gloo":
            cached = self._cache_for(key)
            return gloo.plan_p2p(
                call, size_bytes=num_bytes, cached=cached, costs=self._gloo_costs, behind_bytes=behind_bytes
            )
        return nccl.plan_p2p(call, size_bytes=num_bytes, cached=self._cache_for(key))

    def _call(self, op: str, groups: npt.NDArray[np.integer], root: int) -> tuple[tuple[object, ...], CollectiveCall]:
        key = (op, root, groups.shape, groups.dtype, groups.tobytes())
        if key not in self._calls:
            self._calls[key] = CollectiveCall.of(op, groups, topology=self.topology, root=root)
        return key, self._calls[key]

    def _cache_for(self, key: tuple[object, ...]) -> PatternCache:
        def cached(name: str, make: Callable[[], LinkPattern]) -> LinkPattern:
            if (name, *key) not in self._patterns:
                self._patterns[name, *key] = make()
            return self._patterns[name, *key]

        return cached


def _empty_transfer(size_bytes: int) -> Transfer:
    """Return the transfer of a call with a single member."""
    empty = np.zeros(0)
    pattern = LinkPattern(
        links=np.zeros(0, dtype=np.int32),
        bytes_per_byte=empty,
        bandwidth_bytes_per_s=empty,
        seconds_per_byte=0.0,
        num_local=0.0,
        num_remote=0.0,
        wire_ns=0.0,
    )
    return Transfer(
        latency_ns=0.0,
        work_ns=0.0,
        pattern=pattern,
        size_bytes=float(size_bytes),
        wire_share=1.0,
        sm_share=0.0,
        algorithm="none",
        protocol="none",
    )
