"""Outer optimizers: what to do with the mean of how far all replicas moved.

Local SGD jumps to the mean of all replicas. Seen from their starting point x, that mean is x - d, and d is like a
gradient: an outer optimizer may take a longer step along it, or one with momentum. Between exchanges it does nothing.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sandtable.errors import MethodError

__all__ = ["Consensus", "Jump", "Nesterov", "Outer", "SlowMo"]


class Outer(ABC):
    """Settings of an outer optimizer. Its only state is one vector, `velocity`, zero at the start."""

    needs_consensus: ClassVar[bool] = False
    """Whether it also needs the mixture of all starting points, where these differ."""

    @abstractmethod
    def advance(self, slow: Tensor, *, moved: Tensor, velocity: Tensor, apart: Tensor | None, inner_lr: float) -> None:
        """Move `slow`, in place, from the last starting point to the next.

        `moved` is the mixture of (starting point - weights reached), `apart` the starting point minus the mixture of
        starting points, `inner_lr` the learning rate that led to the weights.
        """


@dataclass(frozen=True)
class Jump(Outer):
    """Jump to the mean itself: plain local SGD."""

    def advance(self, slow: Tensor, *, moved: Tensor, velocity: Tensor, apart: Tensor | None, inner_lr: float) -> None:
        slow.sub_(moved)


@dataclass(frozen=True)
class Nesterov(Outer):
    """SGD with Nesterov momentum along d: v ← μv + d; x ← x - lr·(d + μv). DiLoCo, Douillard et al. 2023."""

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check(self.lr, self.momentum)

    def advance(self, slow: Tensor, *, moved: Tensor, velocity: Tensor, apart: Tensor | None, inner_lr: float) -> None:
        velocity.mul_(self.momentum).add_(moved)
        slow.sub_(moved + self.momentum * velocity, alpha=self.lr)


@dataclass(frozen=True)
class SlowMo(Outer):
    """Slow momentum: u ← βu + d/η; x ← x - lr·η·u, η the inner learning rate. Wang et al. 2019.

    Dividing by η keeps the momentum right while a schedule changes the learning rate.
    """

    lr: float = 1.0
    momentum: float = 0.5

    def __post_init__(self) -> None:
        _check(self.lr, self.momentum)

    def advance(self, slow: Tensor, *, moved: Tensor, velocity: Tensor, apart: Tensor | None, inner_lr: float) -> None:
        if inner_lr == 0:
            slow.sub_(moved, alpha=self.lr)
            return
        velocity.mul_(self.momentum).add_(moved, alpha=1 / inner_lr)
        slow.sub_(velocity, alpha=self.lr * inner_lr)


@dataclass(frozen=True)
class Consensus(Outer):
    """Momentum that also pulls replicas together, for gossip: v ← μv - lr·d - pull·(x - x̃); x ← x + v.

    d and x̃ are gossip mixtures of how far the partners moved and of where they started. NoLoCo, Kolehmainen et al.
    2025, which requires the pull to exceed the momentum.
    """

    lr: float = 0.7
    momentum: float = 0.5
    pull: float = 1.0
    needs_consensus: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.lr, self.momentum)
        most = math.sqrt(2 + self.momentum**2)
        if not self.momentum < self.pull < most:
            raise MethodError(
                f"pull must be between the momentum ({self.momentum:g}) and {most:.2f}, or replicas drift apart, "
                f"but got {self.pull:g}; try 1.0"
            )

    def advance(self, slow: Tensor, *, moved: Tensor, velocity: Tensor, apart: Tensor | None, inner_lr: float) -> None:
        assert apart is not None
        velocity.mul_(self.momentum).sub_(moved, alpha=self.lr).sub_(apart, alpha=self.pull)
        slow.add_(velocity)


def _check(lr: float, momentum: float) -> None:
    if lr <= 0:
        raise MethodError(f"lr of an outer optimizer must be above 0, but got {lr:g}; 1 goes to the mean itself")
    if not 0 <= momentum < 1:
        raise MethodError(f"momentum must be at least 0 and below 1, but got {momentum:g}; try 0.9")
