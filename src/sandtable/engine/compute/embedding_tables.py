"""Embedding tables of FBGEMM, with which TorchRec trains recommenders: lookups in several tables by one kernel.

A lookup reads the rows that it picks, not the tables. The backward pass sorts the indices, and updates each picked row
with its optimizer's state at once. Rows that are picked twice are counted twice: which they are, nobody knows.
"""

from typing import ClassVar

from sandtable.engine.compute.family import Basis, Family
from sandtable.trace.signature import Signature

__all__ = ["EmbeddingTables"]

_LOOKUPS = frozenset(
    f"fbgemm::{kind}_codegen_forward_{weights}{batch}_{entry}"
    for kind in ("split_embedding", "split_embedding_nobag", "dense_embedding", "dense_embedding_nobag")
    for weights in ("weighted", "unweighted")
    for batch in ("", "_vbe")
    for entry in ("cuda", "pt2_wrapper")
)
_OPTIMIZERS = (
    *("adagrad", "adam", "approx_rowwise_adagrad", "approx_sgd", "ftrl_v2", "lamb", "lars_sgd", "none"),
    *("partial_rowwise_adam", "partial_rowwise_lamb", "rowwise_adagrad", "rowwise_adagrad_with_counter", "sgd"),
)
_UPDATES = frozenset(
    f"fbgemm::{kind}_backward_codegen_{optimizer}_{weights}_{entry}"
    for kind in ("split_embedding", "split_embedding_nobag")
    for optimizer in _OPTIMIZERS
    for weights in ("weighted", "unweighted")
    for entry in ("exact_cuda", "exact_vbe_cuda", "pt2_wrapper", "vbe_pt2_wrapper")
)
_TABLES, _NUM_TABLES, _WIDTHS, _INDICES = 0, 3, 5, 7
"""Where a lookup has the rows, a number per table, where each table's columns begin, and the indices."""

_SORT_PASSES, _PAIR_BYTES, _UPDATE_KERNELS = 4, 16, 14
"""A radix sort reads and writes each pair of index and place so often; runs of equal indices take more kernels."""


class EmbeddingTables(Family):
    """Lookups in many tables, and the updates of what they picked."""

    name = "indexing"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = _LOOKUPS | _UPDATES

    def work_ns(self, signature: Signature) -> float:
        is_update = signature.name in _UPDATES
        num_kernels = _UPDATE_KERNELS if is_update else 1
        sort_bytes = 0
        if is_update:
            sort_bytes = 2 * _SORT_PASSES * _PAIR_BYTES * signature.inputs[1 + _INDICES].num_elements
        moved_ns = self.memory_ns(self.traffic_bytes(signature), self.streaming.indexing_share)
        return num_kernels * self.streaming.kernel_ns + moved_ns + self.memory_ns(sort_bytes, 1.0)

    def basis(self, signature: Signature) -> Basis:
        return "nominal"

    def traffic_bytes(self, signature: Signature) -> int:
        """Return the bytes of the rows that are picked, and of what comes in and goes out."""
        is_update = signature.name in _UPDATES
        result = (signature.inputs if is_update else signature.outputs)[0]
        inputs = signature.inputs[is_update:]
        tables, indices = inputs[_TABLES], inputs[_INDICES]
        num_tables = 1 if "_nobag_" in signature.name else max(1, inputs[_NUM_TABLES].num_elements)
        picked = indices.num_elements * result.shape[-1] / num_tables * tables.element_bytes
        lists = sum(spec.size_bytes for spec in (indices, inputs[_INDICES + 1]))
        if not is_update:
            return round(picked) + lists + result.size_bytes
        states = sum(spec.size_bytes for spec in inputs[_INDICES + 2 :] if spec.device != "cpu")
        # Each index reads its gradient, and reads and writes a row and the optimizer's state of it.
        return round(picked * (1 + 2 * (1 + states / max(1, tables.size_bytes)))) + lists
