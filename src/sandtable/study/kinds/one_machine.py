"""SGD on one machine: the first worker goes through all images alone, the others stand by."""

from dataclasses import dataclass

import torch.distributed as dist

from sandtable.errors import StudyError
from sandtable.study.kinds.kind import Kind
from sandtable.study.kinds.setup import Setup
from sandtable.study.kinds.stepping import Stepping
from sandtable.study.kinds.trainer import AfterStep, Cost, Trainer
from sandtable.study.settings import StudySettings

__all__ = ["OneMachine"]


@dataclass(frozen=True)
class OneMachine(Kind):
    """`batch` images a step: as many as one worker of the study takes unless given, as one machine alone would."""

    batch: int | None = None

    def check(self, settings: StudySettings) -> None:
        if self.batch is not None and self.batch < 1:
            raise StudyError(f"batch must be 1 image or more, but got {self.batch}; leave it out to take the study's")

    def trainer(self, setup: Setup) -> Trainer:
        return _Trainer(self, setup)


class _Trainer(Stepping):
    def __init__(self, kind: OneMachine, setup: Setup) -> None:
        super().__init__(setup, setup.all_batches(kind.batch))
        self._optimizer = setup.sgd(self.model.parameters())

    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        return super().train(epoch, after_step) if self.setup.rank == 0 else []

    def set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def step(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def gather(self) -> None:
        """All workers look at the test images together."""
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, 0)

    def cost(self) -> Cost:
        return Cost()
