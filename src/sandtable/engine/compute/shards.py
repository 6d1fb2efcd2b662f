"""Shards of many ranks in one buffer: ZeRO-3 copies every rank's shard of every parameter, one after the other.

DeepSpeed makes a view of each shard in Python and concatenates the views. A step of a model with 292 parameters on
3,072 ranks handles 2.7 million of them, which then takes the host longer than the device:

    host = pieces · calls per piece · view_ns        device = pieces / 128 kernels, or bytes
"""

from math import ceil
from typing import ClassVar

from sandtable.engine.compute.family import Family
from sandtable.trace.signature import Signature

__all__ = ["ShardCopies"]

_PIECES_PER_KERNEL = 128
"""How many tensors one kernel of torch.cat takes."""

_VIEW_NS = 1_000.0
"""A view made from Python; 0.7 (slice) to 1.1 us (narrow) with torch 2.13 on an EPYC."""

_CALLS_PER_PIECE = {
    "deepspeed::interleave_shards": 1,  # slice
    "deepspeed::join_shards": 3,  # narrow, current_stream, record_stream
}


class ShardCopies(Family):
    """Copies between parameters and a buffer that holds a shard of each for every rank."""

    name = "copy"
    operators: ClassVar[frozenset[str]] = frozenset(_CALLS_PER_PIECE)

    def work_ns(self, signature: Signature) -> float:
        moved_ns = self.memory_ns(self.traffic_bytes(signature), self.streaming.elementwise_share)
        return ceil(_num_pieces(signature) / _PIECES_PER_KERNEL) * self.streaming.kernel_ns + moved_ns

    def host_ns(self, signature: Signature) -> float:
        """Return the host's time for the views."""
        return _num_pieces(signature) * _CALLS_PER_PIECE[signature.name] * _VIEW_NS


def _num_pieces(signature: Signature) -> int:
    """Return the number of shards: the rows of a matrix of them, or as many of each tensor as there are ranks."""
    if signature.name == "deepspeed::join_shards":
        return signature.inputs[0].shape[0]
    _, num_shards = signature.arguments
    return len(signature.inputs) * int(num_shards)
