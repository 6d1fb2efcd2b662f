"""Momentum correction with warm-up: Deep Gradient Compression.

A component that waits in the residual misses the momentum it would have gained, and its old momentum pushes the wrong
way when it is finally sent. So momentum moves from the optimizer into the codec, before the selection:

    u = m u + g,   v = v + u,   send the largest of v,   v = v - sent,   u = 0 where sent

(Nesterov: u = m (u + g), v = v + u + g.) The optimizer is then plain SGD without momentum. Optionally g is first
clipped to a norm (of one worker: the whole batch's over the square root of the number of workers).

A model that changes fast tolerates little sparsity, so the share begins large and falls exponentially:
share_t = initial^(1 - t/T) * share^(t/T) over T warm-up messages (in the paper 25 %, 6.25 %, 1.6 %, 0.4 %, 0.1 %, one
epoch each, so T is four epochs of steps).

Lin et al., Deep Gradient Compression, 2018 (arXiv:1712.01887). It costs two vectors of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.methods.data.compression.compression import Codec, finite, require
from sandtable.methods.data.compression.sparse import SparseCodec

__all__ = ["MomentumCodec", "MomentumCorrection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumCorrection:
    """Settings of momentum before selection, and of the share's warm-up."""

    factor: float = 0.9
    nesterov: bool = False
    clip_norm: float | None = None
    """The largest norm of one worker's vector; longer ones are clipped to it."""
    warm_up_steps: int = 0
    initial_share: float = 0.25

    def __post_init__(self) -> None:
        require(0 <= self.factor < 1, f"factor must be at least 0 and below 1, but got {self.factor}; try 0.9")
        require(
            self.clip_norm is None or self.clip_norm > 0,
            f"clip_norm must be above 0, or None for no clipping, but got {self.clip_norm}",
        )
        require(self.warm_up_steps >= 0, f"warm_up_steps must be at least 0, but got {self.warm_up_steps}")
        require(0 < self.initial_share <= 1, f"initial_share must be in (0, 1], but got {self.initial_share}")

    def share_at(self, step: int, share: float) -> float:
        """Return the share that a step sends, from `initial_share` down to `share`."""
        if step >= self.warm_up_steps:
            return share
        passed = step / self.warm_up_steps
        return float(max(self.initial_share, share) ** (1 - passed) * share**passed)


class MomentumCodec(Codec):
    """A codec around a sparse codec; replaces error feedback."""

    def __init__(self, inner: SparseCodec, settings: MomentumCorrection) -> None:
        super().__init__(inner.num_elements, inner.dtype, inner.device)
        require(
            inner.share is not None or settings.warm_up_steps == 0,
            f"warm-up ({settings.warm_up_steps} steps) needs a share, but a static threshold has none; "
            "use Threshold(share=...), or warm_up_steps=0",
        )
        self.inner = inner
        self.settings = settings
        self.step = 0
        self._final_share = inner.share
        dtype = torch.promote_types(inner.dtype, torch.float32)
        self.velocity = torch.zeros(inner.num_elements, dtype=dtype, device=inner.device)
        self.unsent = torch.zeros_like(self.velocity)

    @property
    def fixed_bytes(self) -> int | None:
        return None if self.settings.warm_up_steps > self.step else self.inner.fixed_bytes

    def state_dict(self) -> dict[str, Any]:
        return {
            "velocity": self.velocity.clone(),
            "unsent": self.unsent.clone(),
            "step": self.step,
            "inner": self.inner.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check(state["velocity"], "the velocity")
        self._check(state["unsent"], "what was not sent")
        self.velocity.copy_(state["velocity"])
        self.unsent.copy_(state["unsent"])
        self.step = state["step"]
        self.inner.load_state_dict(state["inner"])

    def _encode(self, vector: Tensor) -> Tensor:
        finite(vector)  # before it reaches the velocity, where it would stay
        self._accumulate(vector.to(self.velocity.dtype))
        if self._final_share is not None:
            self.inner.share = self.settings.share_at(self.step, self._final_share)
        message = self.inner.encode(self.unsent)
        self.inner.add(message, self.unsent, weight=-1.0)
        self.velocity.index_fill_(0, self.inner.sent(message), 0.0)
        self.step += 1
        return message

    def _accumulate(self, vector: Tensor) -> None:
        if self.settings.clip_norm is not None:
            vector = vector * (self.settings.clip_norm / (vector.norm() + 1e-12)).clamp(max=1.0)
        if self.settings.nesterov:
            self.velocity.add_(vector).mul_(self.settings.factor)
            self.unsent.add_(vector)
        else:
            self.velocity.mul_(self.settings.factor).add_(vector)
        self.unsent.add_(self.velocity)

    def _decode(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        if weight is None:
            self.inner.decode(message, out)
        else:
            self.inner.add(message, out, weight)
