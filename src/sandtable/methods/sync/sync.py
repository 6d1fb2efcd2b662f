"""Sync: when ranks exchange, and what: gradients before the optimizer's step, or weights around it.

A `Sync` is a setting; the `Driver` made from it takes the steps of one model on one rank.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from sandtable.methods.compression import Compression
from sandtable.methods.exchange import Cost, Exchange
from sandtable.methods.lane import Lane
from sandtable.methods.wire import Wire

__all__ = ["Driver", "Setup", "Sync"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything a driver works with."""

    model: nn.Module
    parameters: tuple[Tensor, ...]
    sparse_parameters: tuple[Tensor, ...]
    optimizer: Optimizer
    exchange: Exchange
    compression: Compression
    wire: Wire
    lane: Lane
    overlap: bool
    bucket_bytes: int
    seed: int


class Driver(ABC):
    """Takes steps. `paused`: gradients are being accumulated, and stay at home."""

    paused: bool = False

    @abstractmethod
    def step(self) -> None:
        """Exchange what is due, and let the optimizer take its step, in the order of the method."""

    def fetch_common(self) -> bool:
        """Take the weights that all ranks share, where some place holds them; False: there is none, average them."""
        return False

    def begin(self) -> None:  # noqa: B027
        """Told when all ranks hold the same weights: at the start, and after `synchronize`."""

    @property
    @abstractmethod
    def replicas_are_equal(self) -> bool:
        """Whether the last step has left the same weights on every rank."""

    @abstractmethod
    def cost(self) -> Cost:
        """What a step costs this rank on average, by formula."""

    def close(self) -> None:  # noqa: B027
        """Take hooks off the model."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Sync(ABC):
    """Settings of a sync."""

    exchanges_gradients: ClassVar[bool] = False
    """At some steps at least, so that they may leave while the backward pass still computes."""

    def averages_beside_passes(self, compression: Compression) -> bool:
        """Whether weights may be under way while the forward and backward passes compute with them."""
        return False

    @abstractmethod
    def driver(self, setup: Setup) -> Driver: ...
