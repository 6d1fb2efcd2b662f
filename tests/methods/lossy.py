"""A tiny lossy compression for tests: the largest half of the components, with error feedback, of uneven length."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sandtable.methods.data import Codec, Compression

__all__ = ["LargestHalf"]


@dataclass(frozen=True)
class LargestHalf(Compression):
    """Components at least as large as the mean magnitude: (index, value) pairs of 4 + 4 bytes."""

    error_feedback: bool = True
    is_sparse: ClassVar[bool] = True
    is_lossless: ClassVar[bool] = False

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        return _LargestHalf(num_elements, dtype, device, error_feedback=self.error_feedback)

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return 8 * num_elements / 2


class _LargestHalf(Codec):
    def __init__(self, num_elements: int, dtype: torch.dtype, device: torch.device, *, error_feedback: bool) -> None:
        super().__init__(num_elements, dtype, device)
        self._residual = torch.zeros(num_elements) if error_feedback else None

    def _encode(self, vector: Tensor) -> Tensor:
        full = vector.float() if self._residual is None else vector.float() + self._residual
        indices = (full.abs() >= full.abs().mean()).nonzero().flatten().to(torch.int32)
        values = full[indices.long()]
        if self._residual is not None:
            self._residual = full.index_fill(0, indices.long(), 0)
        return torch.cat([indices.view(torch.uint8), values.contiguous().view(torch.uint8)])

    def _decode(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        if weight is None:
            out.zero_()
        half = len(message) // 2
        indices = message[:half].clone().view(torch.int32).long()
        values = message[half:].clone().view(torch.float32).to(out.dtype)
        out.index_add_(0, indices, values * (1.0 if weight is None else weight))

    def state_dict(self) -> dict[str, Any]:
        return {} if self._residual is None else {"residual": self._residual.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._residual is not None:
            self._residual = state["residual"].clone()
