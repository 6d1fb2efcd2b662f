"""What every kind of training provides: settings that check themselves, and a trainer per worker."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from sandtable.study.batches import Batches
from sandtable.study.data import ImageSet
from sandtable.study.settings import StudySettings, Training

__all__ = ["AfterStep", "EpochCost", "LoopTrainer", "MethodKind", "Trainer", "TrainerSetup"]

AfterStep = Callable[[int], None]
"""Called with the number of each finished step of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCost:
    """What an epoch's exchanges cost this worker; the fields have the meaning of those of `Epoch`."""

    communication_s: float = 0.0
    synchronisation_s: float = 0.0
    exposed_s: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    messages: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetup:
    """The inputs of the trainer of worker `rank`; the model has the same weights on every worker.

    `training` is the study's, with the method's own values.
    """

    settings: StudySettings
    training: Training
    images: ImageSet
    model: nn.Module
    rank: int
    workers: int

    @property
    def own_batches(self) -> Batches:
        """This worker's share of the images."""
        return self._batches(rank=self.rank, workers=self.workers, batch=self.settings.batch)

    def all_batches(self, batch: int | None = None) -> Batches:
        """Return all images, for a method whose workers train on them jointly."""
        return self._batches(rank=0, workers=1, batch=batch or self.settings.batch)

    def sgd(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Create the optimizer of [training]."""
        return torch.optim.SGD(
            parameters,
            lr=self.training.learning_rate,
            momentum=self.training.momentum,
            weight_decay=self.training.weight_decay,
        )

    def rate(self, step: int, *, steps_per_epoch: int) -> float:
        """Return the learning rate of `step`, counted from 0 over all epochs."""
        return self.training.rate_at(step, steps_per_epoch=steps_per_epoch, epochs=self.settings.epochs)

    def _batches(self, *, rank: int, workers: int, batch: int) -> Batches:
        return Batches(
            images=self.images,
            rank=rank,
            workers=workers,
            batch=batch,
            seed=self.settings.seed,
            augment=self.settings.training.augment,
            share=self.settings.images_share,
        )


class Trainer(ABC):
    """Trains one worker. Every worker calls every method, in the same order.

    `model` is evaluated as the mean over all workers. `train` reports `steps_per_epoch` steps.
    """

    model: nn.Module
    steps_per_epoch: int

    @abstractmethod
    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        """Train on all images once, on the clock, and return the losses that this worker saw."""

    def gather(self) -> None:
        """Put the weights to evaluate into `model`, off the clock, if they are not there already."""
        return

    def finish(self) -> None:
        """Join all workers' weights into one model after the last epoch, on the clock."""
        return

    @abstractmethod
    def cost(self) -> EpochCost:
        """Return the cost since the previous call."""

    def paused(self) -> AbstractContextManager[None]:
        """Exclude exchanges in this context from the cost: they are not the method's own."""
        return nullcontext()

    @property
    def resolved_settings(self) -> dict[str, object]:
        """Settings that only the trainer knows; they are stored with the run."""
        return {}

    def close(self) -> None:
        """End whatever the trainer started."""
        return


class LoopTrainer(Trainer):
    """A trainer whose every step is a forward and a backward pass of the whole model on this worker."""

    def __init__(self, setup: TrainerSetup, batches: Batches) -> None:
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
        """Set the learning rate for the steps that follow."""

    @abstractmethod
    def step(self) -> None:
        """Apply the gradients, and reset them."""


class MethodKind(ABC):
    """A kind of training with its options, as a settings file gives them.

    A method may set a learning rate only if its kind uses one (`has_rate`).
    """

    has_rate: ClassVar[bool] = True

    @abstractmethod
    def check(self, settings: StudySettings) -> None:
        """Refuse options that cannot work in this study, before anything runs."""

    @abstractmethod
    def trainer(self, setup: TrainerSetup) -> Trainer:
        """Create this worker's trainer. All workers create theirs at the same time."""
