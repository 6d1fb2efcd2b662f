"""QSGD: each component as a sign and one of a few levels.

With b bits there are 2^(b-1) levels of magnitude, zero among them: 0, 1/s, 2/s, ... 1 times the norm of the component's
bucket, s = 2^(b-1) - 1. Random rounding goes up with a probability equal to the closeness of the upper level, so that
the mean of many messages is the vector: unbiased. Alistarh et al., QSGD, 2017 (arXiv:1610.02132), use the Euclidean
norm in their theorems and the largest magnitude in section 5.

Error feedback does not need unbiased messages, but messages that carry more than they distort, or the residual grows
without bound. Rounding to the nearest level qualifies (the residual stays below max |g| * s / (s - 1/2)); random
rounding qualifies with the largest magnitude from 3 bits on (below max |g| * s / (s - 1)), not with 2 bits, and not
with the Euclidean norm of a long bucket. So with error feedback rounding is to nearest by default, and settings whose
residual would grow are refused.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sandtable.methods.data.compression import kernels
from sandtable.methods.data.compression.compression import Codec, Compression, require
from sandtable.methods.data.compression.dense import BucketCodec, bucket_bytes
from sandtable.methods.data.compression.draws import Draws
from sandtable.methods.data.compression.feedback import ErrorFeedback

__all__ = ["QSGD"]


@dataclass(frozen=True, slots=True, repr=False)
class QSGD(Compression):
    """`bits` per component and a scale per bucket: 4 * ceil(n / bucket) + ceil(n * bits / 8) bytes."""

    bits: int = 4
    bucket: int = 512
    norm: Literal["max", "euclidean"] = "max"
    rounding: Literal["random", "nearest"] | None = None
    """None: to the nearest level with error feedback, at random without."""
    error_feedback: bool = True

    def __post_init__(self) -> None:
        require(2 <= self.bits <= 8, f"bits must be 2 to 8, but got {self.bits}; for 1 bit use Sign(), for 16 Half()")
        require(
            self.bucket > 0 and self.bucket % 8 == 0,
            f"bucket must be a positive multiple of 8, but got {self.bucket}; try 512",
        )
        require(self.norm in ("max", "euclidean"), f'norm must be "max" or "euclidean", but got {self.norm!r}')
        require(
            self.rounding in (None, "random", "nearest"),
            f'rounding must be "random" or "nearest", but got {self.rounding!r}',
        )
        if self.error_feedback:
            require(
                self.norm == "max",
                'with error feedback norm must be "max", but got "euclidean", whose residual grows without bound; '
                'use norm="max", or error_feedback=False',
            )
            require(
                self.rounding != "random" or self.bits > 2,
                "with error feedback and 2 bits rounding must be to nearest, since at random the residual grows "
                'without bound; use rounding="nearest", bits=3, or error_feedback=False',
            )
        require(
            self.norm == "max" or self.rounding != "nearest",
            'with norm="euclidean" rounding must be "random", since to nearest most become zero; use norm="max"',
        )

    @property
    def rounds_to_nearest(self) -> bool:
        """Whether components are rounded to the nearest level."""
        return self.error_feedback if self.rounding is None else self.rounding == "nearest"

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return bucket_bytes(num_elements, bits=self.bits, bucket=self.bucket)

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        codec = _QSGDCodec(num_elements, dtype, device, bits=self.bits, bucket=self.bucket)
        codec.settings = self
        codec.draws = Draws(seed)
        return ErrorFeedback(codec) if self.error_feedback else codec


class _QSGDCodec(BucketCodec):
    settings: QSGD
    draws: Draws

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws.count = state["draws"]

    def _write(self, vector: Tensor, message: Tensor) -> None:
        kernels.quantise(
            vector,
            message,
            bucket=self.bucket,
            bits=self.bits,
            euclidean=self.settings.norm == "euclidean",
            nearest=self.settings.rounds_to_nearest,
            key=self.draws.next_key(),
        )

    def _read(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        kernels.restore(message, out, bucket=self.bucket, bits=self.bits, weight=weight)
