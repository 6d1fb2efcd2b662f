"""Sign: one bit per component.

A component is sent as its sign; all components of a bucket get the bucket's mean magnitude. With error feedback (the
default) that converges like SGD; without, it may not converge at all (Karimireddy et al., Error Feedback Fixes
SignSGD, 2019, arXiv:1901.09847). First proposed by Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sandtable.methods.data.compression import kernels
from sandtable.methods.data.compression.compression import Codec, Compression, require
from sandtable.methods.data.compression.dense import BucketCodec, bucket_bytes
from sandtable.methods.data.compression.feedback import ErrorFeedback

__all__ = ["Sign"]


@dataclass(frozen=True, slots=True, repr=False)
class Sign(Compression):
    """One bit per component and a scale per bucket: 4 * ceil(n / bucket) + ceil(n / 8) bytes."""

    keeps_zeros: ClassVar[bool] = False

    bucket: int = 4096
    error_feedback: bool = True

    def __post_init__(self) -> None:
        require(
            self.bucket > 0 and self.bucket % 8 == 0,
            f"bucket must be a positive multiple of 8, but got {self.bucket}; try 4096",
        )

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return bucket_bytes(num_elements, bits=1, bucket=self.bucket)

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        codec = _SignCodec(num_elements, dtype, device, bits=1, bucket=self.bucket)
        return ErrorFeedback(codec) if self.error_feedback else codec


class _SignCodec(BucketCodec):
    def _write(self, vector: Tensor, message: Tensor) -> None:
        kernels.signs(vector, message, bucket=self.bucket)

    def _read(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        kernels.from_signs(message, out, bucket=self.bucket, weight=weight)
