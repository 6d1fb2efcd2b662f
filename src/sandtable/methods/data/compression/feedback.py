"""Error feedback: what a message could not carry is added to the next vector.

A tailor's chalk line: every cut is measured from where the last one should have been, so errors do not add up. With the
residual e, zero at the start, each step sends m = code(v + e) and keeps e = v + e - decoded(m). So at any time

    sum of what was sent + residual = sum of the vectors

up to the rounding of the residual: float64 for float64 vectors, float32 for all others.

Stich et al., Sparsified SGD with Memory, 2018 (arXiv:1809.07599); Karimireddy et al., 2019 (arXiv:1901.09847).
It costs one vector of memory, and no bytes on the wire.
"""

from typing import Any

import torch
from torch import Tensor

from sandtable.methods.data.compression.compression import Codec, finite, require

__all__ = ["ErrorFeedback"]


class ErrorFeedback(Codec):
    """A codec around a codec; a `decay` below 1 lets old residuals fade (SparseLoCo), and thus be lost."""

    def __init__(self, inner: Codec, decay: float = 1.0) -> None:
        super().__init__(inner.num_elements, inner.dtype, inner.device)
        require(0 < decay <= 1, f"the decay of error feedback must be above 0 and at most 1, but got {decay}")
        self.inner = inner
        self.decay = decay
        self.residual = torch.zeros(
            inner.num_elements, dtype=torch.promote_types(inner.dtype, torch.float32), device=inner.device
        )

    @property
    def fixed_bytes(self) -> int | None:
        return self.inner.fixed_bytes

    def state_dict(self) -> dict[str, Any]:
        return {"residual": self.residual.clone(), "inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check(state["residual"], "the residual")
        self.residual.copy_(state["residual"])
        self.inner.load_state_dict(state["inner"])

    def _encode(self, vector: Tensor) -> Tensor:
        finite(vector)  # before it reaches the residual, where it would stay
        if self.decay != 1:
            self.residual.mul_(self.decay)
        self.residual.add_(vector)
        message = self.inner.encode(self.residual)
        self.inner.add(message, self.residual, weight=-1.0)
        return message

    def _decode(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        if weight is None:
            self.inner.decode(message, out)
        else:
            self.inner.add(message, out, weight)
