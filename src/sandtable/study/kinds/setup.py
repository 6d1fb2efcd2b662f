"""What a trainer is given: the settings, the images, a model that is the same on every worker, and its place."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from sandtable.study.batches import Batches
from sandtable.study.data import ImageSet
from sandtable.study.schedule import learning_rate
from sandtable.study.settings import StudySettings, Training

__all__ = ["Setup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Of worker `rank` among `workers`. `training` is the study's, with what the method has of its own."""

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
        """All images, for a method that goes through them as one."""
        return self._batches(rank=0, workers=1, batch=batch or self.settings.batch)

    def sgd(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of [training]."""
        return torch.optim.SGD(
            parameters,
            lr=self.training.learning_rate,
            momentum=self.training.momentum,
            weight_decay=self.training.weight_decay,
        )

    def rate(self, step: int, *, steps_per_epoch: int) -> float:
        """The learning rate of `step`, counted from 0 over all epochs."""
        return learning_rate(self.training, step=step, steps_per_epoch=steps_per_epoch, epochs=self.settings.epochs)

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
