"""Which rank sits where: ranks are dealt to the GPUs of nodes like cards to players."""

import numpy as np
import numpy.typing as npt

from sandtable.errors import ClusterError

__all__ = ["deal"]

Ints = npt.NDArray[np.int32]


def deal(
    gpus: Ints, placement: str | tuple[int, ...], *, num_ranks: int | None, ranks_per_node: int | None
) -> tuple[Ints, Ints]:
    """The node and the GPU within it of every rank, where node n has `gpus[n]` GPUs.

    `ranks_per_node` ranks a node, or as many as it has GPUs; `num_ranks` in all, or as many as fit.
    """
    order = np.asarray(placement if isinstance(placement, tuple) else np.arange(len(gpus)), dtype=np.int32)
    counts = gpus[order]
    if ranks_per_node is not None:
        if not 1 <= ranks_per_node <= counts.min():
            raise ClusterError(
                f"ranks per node ({ranks_per_node}) must be between 1 and the {counts.min()} GPUs of the smallest "
                "node; give a number in that range"
            )
        counts = np.full_like(counts, ranks_per_node)
    node_of = np.repeat(order, counts)
    slot_of = np.arange(len(node_of), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts).astype(np.int32)
    if placement == "round-robin":
        turn = np.argsort(slot_of, kind="stable")
        node_of, slot_of = node_of[turn], slot_of[turn]
    num_ranks = len(node_of) if num_ranks is None else num_ranks
    if not 1 <= num_ranks <= len(node_of):
        raise ClusterError(
            f"the number of ranks ({num_ranks}) must be between 1 and the {len(node_of)} that the {len(order)} nodes "
            "have places for; add nodes with --nnodes"
        )
    return node_of[:num_ranks], slot_of[:num_ranks]
