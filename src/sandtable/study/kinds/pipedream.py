"""PipeDream: the model is divided into stages on the workers, and minibatches flow through them.

A minibatch is one worker's batch of the study; all workers together process all images in one order.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from sandtable.errors import StudyError
from sandtable.methods import pipeline
from sandtable.study.kinds.trainer import AfterStep, EpochCost, MethodKind, Trainer, TrainerSetup
from sandtable.study.model import build_model
from sandtable.study.settings import StudySettings

__all__ = ["PipeDreamKind"]


@dataclass(frozen=True, kw_only=True)
class PipeDreamKind(MethodKind):
    """A stage begins at each of `boundaries`, layers by number or name; `replicas[i]` workers share stage i."""

    boundaries: list[int | str]
    replicas: list[int] | None = None
    vertical_sync: bool = False

    def check(self, settings: StudySettings) -> None:
        if not isinstance(self.boundaries, list) or not self.boundaries:
            raise StudyError(
                "boundaries must be a list of the layers at which the second and later stages begin, but got "
                f"{self.boundaries!r}; try [6]"
            )
        model = build_model(settings.model, shape=(3, 32, 32), num_classes=10, seed=0)
        pipeline.cut(model, (torch.zeros(1, 3, 32, 32),), self.boundaries)
        self.layout(settings.workers)

    def layout(self, workers: int) -> pipeline.StageLayout:
        """Assign the stages to this many workers."""
        stages = len(self.boundaries) + 1
        return pipeline.StageLayout.of(
            num_stages=stages, num_ranks=workers, replicas=self.replicas, is_interleaved=False
        )

    def trainer(self, setup: TrainerSetup) -> Trainer:
        return PipeDreamTrainer(self, setup)


class PipeDreamTrainer(Trainer):
    """One worker's stage."""

    def __init__(self, kind: PipeDreamKind, setup: TrainerSetup) -> None:
        self._kind, self._setup, self.model = kind, setup, setup.model
        self._batches = setup.all_batches()
        self.steps_per_epoch = self._batches.steps_per_epoch
        example = torch.zeros(self._batches.batch, *setup.images.shape)
        self._stages = pipeline.cut(self.model, (example,), kind.boundaries)
        self._pipeline = pipeline.Pipeline(
            self._stages,
            setup.sgd,
            loss=nn.functional.cross_entropy,
            schedule=pipeline.PipeDream(vertical_sync=kind.vertical_sync),
            replicas=kind.replicas,
        )
        self._counted = self._counters()

    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        """Train an epoch; at its end the pipeline is empty, and all stages have seen the same minibatches."""
        losses = []
        for step, (inputs, targets) in enumerate(self._batches.epoch(epoch, with_inputs=self._takes_inputs)):
            self._set_rate(self._setup.rate(epoch * self.steps_per_epoch + step, steps_per_epoch=self.steps_per_epoch))
            loss = self._pipeline.step(inputs, targets)
            after_step(step)
            if loss is not None:
                losses.append(loss.item())
        self._pipeline.drain()
        return losses

    def gather(self) -> None:
        """Send every stage to all workers, which evaluate the model together."""
        for number, stage in enumerate(self._stages):
            for parameter in stage.parameters():
                dist.broadcast(parameter.data, self._pipeline.layout.ranks(number).start)

    def cost(self) -> EpochCost:
        """Count the shortest wait of all workers as communication, and longer ones as waiting for each other."""
        before, now = self._counted, self._counters()
        self._counted = now
        sent_bytes, messages, waited_s = (later - earlier for earlier, later in zip(before, now, strict=True))
        least_s = torch.tensor(waited_s, dtype=torch.float64)
        dist.all_reduce(least_s, op=dist.ReduceOp.MIN)
        return EpochCost(
            communication_s=float(least_s),
            synchronisation_s=waited_s,
            exposed_s=waited_s,
            sent_bytes=sent_bytes,
            received_bytes=sent_bytes,  # on average: another worker received what this one sent
            messages=messages,
        )

    @property
    def resolved_settings(self) -> dict[str, object]:
        layout = self._pipeline.layout
        return {"stages": {"replicas": list(layout.replicas), "boundaries": list(self._kind.boundaries)}}

    def close(self) -> None:
        self._pipeline.close()

    def _takes_inputs(self, step: int) -> bool:
        """Return whether this worker reads the minibatch; workers take turns from an empty pipeline on."""
        return self._pipeline.takes_inputs and self._pipeline.layout.rank_for(0, step) == self._setup.rank

    def _set_rate(self, rate: float) -> None:
        if self._pipeline.optimizer is not None:
            for group in self._pipeline.optimizer.param_groups:
                group["lr"] = rate

    def _counters(self) -> tuple[float, float, float]:
        traffic = self._pipeline.traffic
        return float(traffic.sent_bytes), float(traffic.messages), self._pipeline.waited_s
