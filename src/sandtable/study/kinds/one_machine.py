"""SGD on one machine: the first worker trains alone on all images, and the others wait."""

from dataclasses import dataclass

import torch.distributed as dist

from sandtable.errors import StudyError
from sandtable.study.kinds.trainer import AfterStep, EpochCost, LoopTrainer, MethodKind, Trainer, TrainerSetup
from sandtable.study.settings import StudySettings

__all__ = ["OneMachineKind"]


@dataclass(frozen=True)
class OneMachineKind(MethodKind):
    """`batch` images per step; by default as many as one worker of the study takes."""

    batch: int | None = None

    def check(self, settings: StudySettings) -> None:
        if self.batch is not None and self.batch < 1:
            raise StudyError(f"batch must be 1 image or more, but got {self.batch}; leave it out to use the study's")

    def trainer(self, setup: TrainerSetup) -> Trainer:
        return OneMachineTrainer(self, setup)


class OneMachineTrainer(LoopTrainer):
    """An ordinary loop on the first worker."""

    def __init__(self, kind: OneMachineKind, setup: TrainerSetup) -> None:
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
        """Send the model to all workers, which evaluate it together."""
        for parameter in self.model.parameters():
            dist.broadcast(parameter.data, 0)

    def cost(self) -> EpochCost:
        return EpochCost()
