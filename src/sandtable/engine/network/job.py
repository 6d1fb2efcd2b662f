"""One collective to be planned: its operation, its size, and where its members sit."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from sandtable.cluster.node import NodeKind
from sandtable.cluster.topology import Topology
from sandtable.engine.network.layout import Layout
from sandtable.engine.network.transfer import Ints
from sandtable.errors import TraceError

__all__ = ["COLLECTIVES", "Job", "bus_factor", "message_bytes"]

COLLECTIVES = frozenset(
    {
        "all_gather",
        "all_reduce",
        "all_to_all",
        "barrier",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "scatter",
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """`op` over `members`, one row a group in the order of its ranks; `layout` is the same by node.

    `root` is the place in its row of a rooted operation's root.
    """

    op: str
    members: Ints
    layout: Layout
    topology: Topology
    root: int = 0

    @classmethod
    def of(cls, op: str, groups: npt.ArrayLike, *, topology: Topology, root: int = 0) -> Self:
        layout = Layout.of(groups, node_of=topology.node_of, slot_of=topology.slot_of)
        if not 0 <= root < layout.size:
            raise TraceError(f"the root must be a place in its group of {layout.size}, but got {root}; the first is 0")
        members = np.asarray(groups, dtype=np.int32)
        return cls(op=op, members=members, layout=layout, topology=topology, root=root)

    @property
    def roots(self) -> Ints:
        """The root of each group."""
        return self.members[:, self.root]

    @cached_property
    def kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of node that members sit on."""
        nodes = self.topology.node_of[self.layout.ranks[self.layout.run_start]]
        return tuple(self.topology.kinds[index] for index in np.unique(self.topology.kind_of_node[nodes]))

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def spans_nodes(self) -> bool:
        return self.layout.max_nodes > 1

    @property
    def has_nvlink(self) -> bool:
        return all(kind.scale_up.has_nvlink for kind in self.kinds)


def message_bytes(op: str, bytes_in: int, bytes_out: int, size: int) -> int:
    """The size of a message as NCCL counts it, from what one member puts in and gets out.

    All-reduce, broadcast, reduce: the buffer. All-gather, gather: what all put in together. Reduce-scatter, scatter:
    what is to be shared out. All-to-all: what one member holds for all, itself included.
    """
    match op:
        case "all_reduce" | "broadcast" | "reduce" | "all_to_all":
            return max(bytes_in, bytes_out)
        case "all_gather" | "gather":
            return max(bytes_out, bytes_in * size)
        case "reduce_scatter" | "scatter":
            return max(bytes_in, bytes_out * size)
        case "barrier":
            return 1
    raise TraceError(
        f"a collective must be one of {', '.join(sorted(COLLECTIVES))}, but got '{op}'; "
        "plan send and recv with plan_p2p, and anything else as what it is made of"
    )


def bus_factor(op: str, size: int) -> float:
    """What one member must send for each byte of the message: bus bandwidth is this over the time."""
    match op:
        case "all_reduce" | "barrier":
            return 2.0 * (size - 1) / size
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return (size - 1) / size
    return 1.0
