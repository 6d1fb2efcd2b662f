"""Who trains on one worker. The study says when, holds the clock, and asks how good the model is in between."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["AfterStep", "Cost", "Trainer"]

AfterStep = Callable[[int], None]
"""Told each step of an epoch that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an epoch cost this worker in exchanges; the fields mean what they mean in a result (`Epoch`)."""

    communication_s: float = 0.0
    synchronisation_s: float = 0.0
    exposed_s: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    messages: float = 0.0


class Trainer(ABC):
    """Every worker calls everything, in the same order.

    `model` is what is evaluated: the mean of all workers' models. `steps_per_epoch` are those that `train` tells of.
    """

    model: nn.Module
    steps_per_epoch: int

    @abstractmethod
    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        """Go through the images once, on the clock. The losses that this worker saw."""

    def gather(self) -> None:
        """Put into `model` what is to be evaluated, if it is not there already. Off the clock."""
        return

    def finish(self) -> None:
        """After the last epoch, on the clock: what there is to do until there is one model."""
        return

    @abstractmethod
    def cost(self) -> Cost:
        """Since this was called before."""

    def paused(self) -> AbstractContextManager[None]:
        """In here exchanges are not the method's own."""
        return nullcontext()

    @property
    def about(self) -> dict[str, Any]:
        """What settings do not say and a reader of the result should know."""
        return {}

    def close(self) -> None:
        """The end."""
        return
