"""Host memory: what the tensors of a rank hold outside the card, such as offloaded states and pinned buffers."""

from __future__ import annotations

import gc

__all__ = ["HostMemoryReader"]

_SMALLEST_BYTES = 1 << 20
"""Smaller tensors are counters, masks and batches."""


class HostMemoryReader:
    """Reads once, after the first step: by then optimizers have made their states."""

    def __init__(self) -> None:
        self.num_bytes: int | None = None

    def read(self) -> None:
        """Add up the storages of all tensors in host memory, if that has not been done."""
        if self.num_bytes is None:
            self.num_bytes = _tensor_bytes()


def _tensor_bytes() -> int:
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeTensor

    # By type: `isinstance` asks an object for its class, and proxies of objects that are gone raise.
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    storages = {}
    for tensor in tensors:
        if not issubclass(type(tensor), FakeTensor) and tensor.device.type == "cpu" and not tensor.is_sparse:
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(size for size in storages.values() if size >= _SMALLEST_BYTES)
