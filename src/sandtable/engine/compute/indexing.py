"""Operators that follow an index: embeddings, gathers, scatters, sorting, the loss over classes.

They use only parts of the lines of memory they touch, so they reach less of the bandwidth; gradients of embeddings and
accumulating writes sort the indices first, with a handful of small kernels more.
"""

from typing import ClassVar

from sandtable.engine.compute.family import Family
from sandtable.trace.signature import Signature

__all__ = ["Indexing"]

_LINE_BYTES = 32
_LONG_ROW_BYTES = 512
_ROW_LOOKUPS = frozenset({"aten::embedding", "aten::index_select"})

_IMPLEMENTATIONS: dict[str, tuple[int, float]] = {
    **dict.fromkeys(("embedding", "index", "index_select", "gather", "take", "take_along_dim"), (1, 1.0)),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill"), (1, 1.0)),
    **dict.fromkeys(("masked_scatter", "gather_backward", "index_select_backward", "one_hot"), (2, 1.0)),
    **dict.fromkeys(("embedding_dense_backward", "_index_put_impl", "index_put", "_unsafe_index_put"), (6, 1.0)),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), (2, 1.0)),
    **dict.fromkeys(("_embedding_bag_backward", "_embedding_bag_dense_backward"), (6, 1.0)),
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"), (2, 1.0)),
    **dict.fromkeys(("nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive"), (4, 2.0)),
    **dict.fromkeys(("sort", "argsort", "msort"), (8, 6.0)),
    **dict.fromkeys(("topk", "kthvalue", "multinomial", "searchsorted", "bucketize"), (4, 3.0)),
}
"""Kernels launched, and bytes relative to the least that must be moved, by operator."""


class Indexing(Family):
    """Reads and writes that follow an index."""

    name = "indexing"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = frozenset(f"aten::{name}" for name in _IMPLEMENTATIONS)

    def work_ns(self, signature: Signature) -> float:
        num_kernels, passes = _IMPLEMENTATIONS[signature.name.removeprefix("aten::").removesuffix("_")]
        share = self.streaming.elementwise_share if _picks_long_rows(signature) else self.streaming.indexing_share
        moved_ns = self.memory_ns(self.traffic_bytes(signature) * passes, share)
        return num_kernels * self.streaming.kernel_ns + moved_ns

    def traffic_bytes(self, signature: Signature) -> int:
        """Return the bytes: of the scores, the loss reads one line per row; its gradient writes all and reads none."""
        name, inputs = signature.name, signature.inputs
        if name.startswith("aten::nll_loss") and name.endswith("_forward"):
            return inputs[1].size_bytes + inputs[1].num_elements * _LINE_BYTES
        if name.startswith("aten::nll_loss"):
            return inputs[2].size_bytes + sum(spec.size_bytes for spec in signature.outputs)
        if name == "aten::embedding":
            # A row that is picked again comes from the cache.
            table, indices = inputs[:2]
            picked = sum(spec.size_bytes for spec in signature.outputs)
            return min(picked, table.distinct_bytes) + indices.size_bytes + picked
        if name in ("aten::_embedding_bag", "aten::_embedding_bag_forward_only"):
            table, indices = inputs[:2]
            picked = indices.num_elements * table.shape[-1] * table.element_bytes
            lists = sum(spec.size_bytes for spec in (*inputs[1:], *signature.outputs))
            return min(picked, table.distinct_bytes) + lists
        return super().traffic_bytes(signature)


def _picks_long_rows(signature: Signature) -> bool:
    """Return whether whole rows of many lines are read, as fast as memory in order."""
    if signature.name not in _ROW_LOOKUPS or len(signature.inputs[0].shape) != 2:
        return False
    return signature.inputs[0].shape[-1] * signature.inputs[0].element_bytes >= _LONG_ROW_BYTES
