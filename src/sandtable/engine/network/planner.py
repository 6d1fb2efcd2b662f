"""Planning calls on one topology, remembering what does not depend on their size."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sandtable.cluster.topology import Topology
from sandtable.engine.network import gloo, nccl
from sandtable.engine.network.gloo import GlooCosts
from sandtable.engine.network.job import Job, message_bytes
from sandtable.engine.network.transfer import Pattern, Transfer
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
    """`op` by every row of `groups` at the same time. See `Planner`, which is quicker for many calls."""
    planner = Planner(topology, backend=backend)
    return planner.collective(op, bytes_in=bytes_in, bytes_out=bytes_out, groups=groups, root=root, algorithm=algorithm)


def plan_p2p(
    num_bytes: int, *, src: npt.ArrayLike, dst: npt.ArrayLike, topology: Topology, backend: str = "nccl"
) -> Transfer:
    """A message of `num_bytes` from every rank `src[i]` to `dst[i]` at the same time."""
    return Planner(topology, backend=backend).p2p(num_bytes, src=src, dst=dst)


class Planner:
    """Plans calls on `topology`. Which links a call uses is kept, so that one of another size costs little."""

    def __init__(self, topology: Topology, *, backend: str = "nccl", gloo_costs: GlooCosts | None = None) -> None:
        if backend not in BACKENDS:
            raise TraceError(f"the backend must be one of {', '.join(BACKENDS)}, but got '{backend}'; choose one")
        self.topology, self.backend = topology, backend
        self._gloo_costs = gloo_costs or GlooCosts()
        self._jobs: dict[tuple[object, ...], Job] = {}
        self._patterns: dict[tuple[object, ...], Pattern] = {}

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
        """`op` by every row of `groups`; a member puts in `bytes_in` and gets `bytes_out`.

        `root` is the root's place in its row, for rooted operations. `algorithm` forces one instead of the quickest.
        """
        key, job = self._job(op, np.asarray(groups), root)
        size_bytes = message_bytes(op, bytes_in, bytes_out, job.size)
        if job.size == 1:
            return _nothing(size_bytes)
        recall = self._recaller(key)
        if self.backend == "gloo":
            return gloo.plan(job, size_bytes=size_bytes, algorithm=algorithm, recall=recall, costs=self._gloo_costs)
        return nccl.plan(job, size_bytes=size_bytes, algorithm=algorithm, recall=recall)

    def p2p(self, num_bytes: int, *, src: npt.ArrayLike, dst: npt.ArrayLike, behind_bytes: int = 0) -> Transfer:
        """`num_bytes` from every rank `src[i]` to `dst[i]`; to oneself nothing is sent.

        `behind_bytes` are sent from `dst[i]` to `src[i]` in one batch with the receiving, which only gloo minds.
        """
        pairs = np.stack(np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst)), axis=1)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        if not len(pairs):
            return _nothing(num_bytes)
        key, job = self._job("send", pairs, 0)
        if self.backend == "gloo":
            recall = self._recaller(key)
            return gloo.plan_p2p(
                job, size_bytes=num_bytes, recall=recall, costs=self._gloo_costs, behind_bytes=behind_bytes
            )
        return nccl.plan_p2p(job, size_bytes=num_bytes, recall=self._recaller(key))

    def _job(self, op: str, groups: npt.NDArray[np.integer], root: int) -> tuple[tuple[object, ...], Job]:
        key = (op, root, groups.shape, groups.dtype, groups.tobytes())
        if key not in self._jobs:
            self._jobs[key] = Job.of(op, groups, topology=self.topology, root=root)
        return key, self._jobs[key]

    def _recaller(self, key: tuple[object, ...]) -> Callable[[str, Callable[[], Pattern]], Pattern]:
        def recall(name: str, make: Callable[[], Pattern]) -> Pattern:
            if (name, *key) not in self._patterns:
                self._patterns[name, *key] = make()
            return self._patterns[name, *key]

        return recall


def _nothing(size_bytes: int) -> Transfer:
    """A call that needs nobody else."""
    empty = np.zeros(0)
    pattern = Pattern(
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
