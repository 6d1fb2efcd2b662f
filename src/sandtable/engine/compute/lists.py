"""Operators on lists of tensors: foreach and fused optimizers, gradient clipping, loss scaling.

torch packs as many tensors into one kernel as its arguments hold: fewer tensors the more lists there are, and at most
320 blocks of 65,536 elements, so a step over many or large tensors is a series of kernels. On a CPU foreach operators
are loops over the tensors.
"""

from math import ceil
from typing import ClassVar

from sandtable.engine.compute.family import Family
from sandtable.trace.signature import TENSOR, Signature

__all__ = ["Lists", "is_list_operator"]

_BLOCK_ELEMENTS = 65_536
_BLOCKS_PER_KERNEL = 320
_TENSORS_PER_KERNEL = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""How many tensors of each list a kernel takes, by the number of lists."""


_PREFIXES = (
    *("aten::_foreach_", "aten::_amp_foreach_", "aten::_fused_ad", "aten::_fused_sgd"),
    "deepspeed::multi_tensor_",
)


class Lists(Family):
    """One kernel for many tensors."""

    name = "optimizer"
    follows_bytes = True
    operators: ClassVar[frozenset[str]] = frozenset()

    def work_ns(self, signature: Signature) -> float:
        share = self.streaming.elementwise_share
        moved_ns = self.memory_ns(self.traffic_bytes(signature), share)
        return self.num_kernels(signature) * self.streaming.kernel_ns + moved_ns

    def num_kernels(self, signature: Signature) -> int:
        """Return the number of kernels that the tensors of the first list, and their blocks, need."""
        num_lists = max(1, min(5, signature.arguments.count(TENSOR)))
        tensors = signature.inputs[: max(1, len(signature.inputs) // num_lists)]
        if self.device.vendor == "cpu" and "_foreach_" in signature.name:
            return max(1, len(tensors))
        blocks = sum(ceil(spec.num_elements / _BLOCK_ELEMENTS) for spec in tensors)
        by_tensors = ceil(len(tensors) / _TENSORS_PER_KERNEL[num_lists])
        return max(1, by_tensors, ceil(blocks / _BLOCKS_PER_KERNEL))


def is_list_operator(name: str) -> bool:
    """Return whether `name` is such an operator: `aten::_foreach_add_`, `aten::_fused_adamw_`, ..."""
    return name.startswith(_PREFIXES)
