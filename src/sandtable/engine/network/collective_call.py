"""One collective to be planned: its operation, its size, and where its members sit."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from sandtable.cluster.node import NodeKind
from sandtable.cluster.topology import Topology
from sandtable.engine.network.layout import GroupLayout
from sandtable.engine.network.transfer import Ints
from sandtable.errors import TraceError

__all__ = ["COLLECTIVES", "CollectiveCall", "bus_factor", "message_bytes"]

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
class CollectiveCall:
    """`op` over `members`, one row per group in the order of its ranks; `layout` orders the same members by node.

    `root` is the position of a rooted operation's root in its row.
    """

    op: str
    members: Ints
    layout: GroupLayout
    topology: Topology
    root: int = 0

    @classmethod
    def of(cls, op: str, groups: npt.ArrayLike, *, topology: Topology, root: int = 0) -> Self:
        layout = GroupLayout.of(groups, node_of=topology.node_of, slot_of=topology.slot_of)
        if not 0 <= root < layout.size:
            raise TraceError(
                f"the root must be a position in its group of {layout.size}, but got {root}; the first is 0"
            )
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
    """Return the size of a message as NCCL counts it, from what one member puts in and gets out.

    All-reduce, broadcast, reduce: the buffer. All-gather, gather: what all put in together. Reduce-scatter, scatter:
    what is shared out. All-to-all: what one member holds for all, including itself.
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
        "plan send and recv with plan_p2p, and composite operations part by part"
    )


def bus_factor(op: str, size: int) -> float:
    """Return what one member must send per byte of the message: bus bandwidth is this over the time."""
    match op:
        case "all_reduce" | "barrier":
            return 2.0 * (size - 1) / size
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return (size - 1) / size
    return 1.0
