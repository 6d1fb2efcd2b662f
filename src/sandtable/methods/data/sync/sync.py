"""Sync: when ranks exchange, and what: gradients before the optimizer's step, or weights around it.

A `Sync` is a setting; its `SyncDriver` takes the steps of one model on one rank.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from sandtable.methods.data.communication_queue import CommunicationQueue
from sandtable.methods.data.compression.compression import Compression
from sandtable.methods.data.exchange.exchange import Exchange, ExchangeCost
from sandtable.methods.transport.wire import Wire

__all__ = ["Sync", "SyncDriver", "SyncSetup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSetup:
    """Everything a driver works with."""

    model: nn.Module
    parameters: tuple[Tensor, ...]
    sparse_parameters: tuple[Tensor, ...]
    optimizer: Optimizer
    exchange: Exchange
    compression: Compression
    wire: Wire
    queue: CommunicationQueue
    overlap: bool
    bucket_bytes: int
    seed: int


class SyncDriver(ABC):
    """Takes steps. While `paused`, gradients only accumulate and are not sent."""

    paused: bool = False

    @abstractmethod
    def step(self) -> None:
        """Exchange what is due and step the optimizer, in the order of the method."""

    def fetch_common(self) -> bool:
        """Take the common weights if a server holds them; return False if the ranks must average their own."""
        return False

    def begin(self) -> None:  # noqa: B027
        """Start again, called when all ranks hold the same weights: at the start, and after `synchronize`."""

    @property
    @abstractmethod
    def replicas_are_equal(self) -> bool:
        """Whether the last step has left the same weights on every rank."""

    @abstractmethod
    def cost(self) -> ExchangeCost:
        """Compute what a step costs this rank on average."""

    def close(self) -> None:  # noqa: B027
        """Remove hooks from the model."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Sync(ABC):
    """Settings of a sync."""

    exchanges_gradients: ClassVar[bool] = False
    """Whether some steps exchange gradients, which may leave while the backward pass still computes."""

    def averages_beside_passes(self, compression: Compression) -> bool:
        """Return whether weights may travel while the forward and backward passes compute with them."""
        return False

    @abstractmethod
    def driver(self, setup: SyncSetup) -> SyncDriver: ...
