"""PipeDream: the model in stages on the workers, and minibatch after minibatch through them.

A minibatch is a worker's batch of the study; all workers together go through all images in the same order.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sandtable.errors import StudyError
from sandtable.methods import pipeline
from sandtable.methods.pipeline.layout import Layout
from sandtable.study.kinds.kind import Kind
from sandtable.study.kinds.setup import Setup
from sandtable.study.kinds.trainer import AfterStep, Cost, Trainer
from sandtable.study.model import build_model
from sandtable.study.settings import StudySettings

__all__ = ["PipeDream"]


@dataclass(frozen=True, kw_only=True)
class PipeDream(Kind):
    """A stage begins at each of `boundaries`, layers by number or name; `replicas[k]` workers share stage k."""

    boundaries: list[int | str]
    replicas: list[int] | None = None
    vertical_sync: bool = False

    def check(self, settings: StudySettings) -> None:
        if not isinstance(self.boundaries, list) or not self.boundaries:
            raise StudyError(
                f"boundaries must be a list of the layers at which the second and later stages begin, but got "
                f"{self.boundaries!r}; try [6]"
            )
        model = build_model(settings.model, shape=(3, 32, 32), num_classes=10, seed=0)
        pipeline.cut(model, (torch.zeros(1, 3, 32, 32),), self.boundaries)
        self.layout(settings.workers)

    def layout(self, workers: int) -> Layout:
        stages = len(self.boundaries) + 1
        return Layout.of(num_stages=stages, num_ranks=workers, replicas=self.replicas, is_interleaved=False)

    def trainer(self, setup: Setup) -> Trainer:
        return _Trainer(self, setup)


class _Trainer(Trainer):
    def __init__(self, kind: PipeDream, setup: Setup) -> None:
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
        """At the end of it the pipeline is empty: all stages have seen the same minibatches."""
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
        """Every stage goes to all workers, so that they look at the test images together."""
        for number, stage in enumerate(self._stages):
            for parameter in stage.parameters():
                dist.broadcast(parameter.data, self._pipeline.layout.ranks(number).start)

    def cost(self) -> Cost:
        """The worker that waits least waits for the wire; what others wait beyond that, they wait for each other."""
        before, now = self._counted, self._counters()
        self._counted = now
        sent_bytes, messages, waited_s = (later - earlier for earlier, later in zip(before, now, strict=True))
        least_s = torch.tensor(waited_s, dtype=torch.float64)
        dist.all_reduce(least_s, op=dist.ReduceOp.MIN)
        return Cost(
            communication_s=float(least_s),
            synchronisation_s=waited_s,
            exposed_s=waited_s,
            sent_bytes=sent_bytes,
            received_bytes=sent_bytes,  # on average: another worker got what this one sent
            messages=messages,
        )

    @property
    def about(self) -> dict[str, Any]:
        layout = self._pipeline.layout
        return {"stages": {"replicas": list(layout.replicas), "boundaries": list(self._kind.boundaries)}}

    def close(self) -> None:
        self._pipeline.close()

    def _takes_inputs(self, step: int) -> bool:
        """Whether this worker is the one that takes the minibatch in; they take turns from an empty pipeline on."""
        return self._pipeline.takes_inputs and self._pipeline.layout.rank_for(0, step) == self._setup.rank

    def _set_rate(self, rate: float) -> None:
        if self._pipeline.optimizer is not None:
            for group in self._pipeline.optimizer.param_groups:
                group["lr"] = rate

    def _counters(self) -> tuple[float, float, float]:
        traffic = self._pipeline.traffic
        return float(traffic.sent_bytes), float(traffic.messages), self._pipeline.waited_s
