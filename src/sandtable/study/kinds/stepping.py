"""Trainers whose every step is a forward and a backward pass of the whole model on this worker."""

from abc import abstractmethod

from torch import nn

from sandtable.study.batches import Batches
from sandtable.study.kinds.setup import Setup
from sandtable.study.kinds.trainer import AfterStep, Trainer

__all__ = ["Stepping"]


class Stepping(Trainer):
    """An ordinary loop."""

    def __init__(self, setup: Setup, batches: Batches) -> None:
        self.setup, self.model, self.batches = setup, setup.model, batches
        self.steps_per_epoch = batches.steps_per_epoch

    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        losses = []
        for step, (inputs, targets) in enumerate(self.batches.epoch(epoch)):
            number = epoch * self.steps_per_epoch + step
            self.set_rate(self.setup.rate(number, steps_per_epoch=self.steps_per_epoch))
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            self.step()
            after_step(step)
            losses.append(loss.item())
        return losses

    @abstractmethod
    def set_rate(self, rate: float) -> None:
        """The learning rate from now on."""

    @abstractmethod
    def step(self) -> None:
        """Gradients are there: use them, and forget them."""
