"""What Sign and QSGD share: every component in a few bits, behind one scale per bucket of components."""

from abc import abstractmethod

import torch
from torch import Tensor

from sandtable.methods.data.compression.compression import Codec, finite
from sandtable.methods.data.compression.packing import packed_bytes

__all__ = ["SCALE_BYTES", "BucketCodec", "bucket_bytes"]

SCALE_BYTES = 4


def bucket_bytes(num_elements: int, *, bits: int, bucket: int) -> int:
    """Compute 4 * ceil(n / bucket) + ceil(n * bits / 8)."""
    return SCALE_BYTES * -(-num_elements // bucket) + packed_bytes(num_elements, bits)


class BucketCodec(Codec):
    """Messages of one length; the kernels take contiguous float32, anything else goes through a copy."""

    def __init__(self, num_elements: int, dtype: torch.dtype, device: torch.device, *, bits: int, bucket: int) -> None:
        super().__init__(num_elements, dtype, device)
        self.bits = bits
        self.bucket = bucket

    @property
    def fixed_bytes(self) -> int:
        return bucket_bytes(self.num_elements, bits=self.bits, bucket=self.bucket)

    def _encode(self, vector: Tensor) -> Tensor:
        message = torch.empty(self.fixed_bytes, dtype=torch.uint8)
        self._write(finite(vector), message)
        return message

    def _decode(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        self._require_length(message, self.fixed_bytes)
        if out.dtype == torch.float32 and out.device.type == "cpu" and out.is_contiguous():
            self._read(message, out, weight)
            return
        values = torch.empty(self.num_elements, dtype=torch.float32)
        self._read(message, values, None)
        if weight is None:
            out.copy_(values)
        else:
            out.add_(values.to(out.device, out.dtype), alpha=weight)

    @abstractmethod
    def _write(self, vector: Tensor, message: Tensor) -> None: ...

    @abstractmethod
    def _read(self, message: Tensor, out: Tensor, weight: float | None) -> None: ...
