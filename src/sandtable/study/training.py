"""The training of one worker: an ordinary loop around `DataParallel`, with a clock."""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sandtable.study.assignment import Assignment
from sandtable.study.batches import Batches
from sandtable.study.data import load_images
from sandtable.study.evaluation import correct, evaluate
from sandtable.study.method import Method
from sandtable.study.model import build_model
from sandtable.study.schedule import learning_rate

__all__ = ["Tell", "train"]

Tell = Callable[[dict[str, Any]], None]
"""Told what has been done, a few times a second at most."""

_MEASURED = ("communication_s", "synchronisation_s", "exposed_s", "sent_bytes", "received_bytes", "messages")


def train(assignment: Assignment, index: int, tell: Tell) -> dict[str, Any]:
    """Train configuration `index` to the end; every worker of the process group calls it. What this worker saw."""
    return _Worker(assignment, assignment.settings.methods[index], tell).run()


class _Worker:
    def __init__(self, assignment: Assignment, method: Method, tell: Tell) -> None:
        settings = assignment.settings
        images = load_images(settings.data, assignment.data)
        self.settings, self.method = settings, method
        self.batches = Batches(
            images=images,
            rank=dist.get_rank(),
            workers=dist.get_world_size(),
            batch=settings.batch,
            seed=settings.seed,
            augment=settings.training.augment,
            share=settings.images_share,
        )
        self.model = build_model(settings.model, shape=images.shape, num_classes=images.num_classes, seed=settings.seed)
        self.training = settings.training_of(method)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=self.training.learning_rate,
            momentum=self.training.momentum,
            weight_decay=self.training.weight_decay,
        )
        methods = importlib.import_module(assignment.methods)
        self.parallel = methods.DataParallel(self.model, self.optimizer, **method.axes(methods), seed=settings.seed)
        self.progress = _Progress(tell, settings.epochs, self.batches.steps_per_epoch)

    def run(self) -> dict[str, Any]:
        epochs = [self._epoch(number) for number in range(self.settings.epochs)]
        self.parallel.close()
        return {"epochs": epochs, "memory_bytes": _memory_bytes(), **self.replicas}

    def _epoch(self, number: int) -> dict[str, float]:
        is_last = number + 1 == self.settings.epochs
        with self._clock() as training:
            losses = [self._step(number, step, *batch) for step, batch in enumerate(self.batches.epoch(number))]
        loss = sum(losses) / len(losses)
        with self.parallel.record.paused():
            finding = evaluate(self.model, self.batches)
            if is_last:
                self.replicas = dict(zip(("replica_correct", "tested"), correct(self.model, self.batches), strict=True))
        with self._clock() as joining:
            if is_last:
                self.parallel.synchronize()  # one model is what training is for, so its cost counts
        self.progress.end_epoch(number, loss=loss, accuracy=finding.accuracy, is_last=is_last)
        self.parallel.record.end_epoch(accuracy=finding.accuracy, loss=loss, disagreement=False)
        measured = self.parallel.record.to_dict()["epochs"][-1]
        return {
            **{name: float(measured[name]) for name in _MEASURED},
            "seconds": training.seconds + joining.seconds,
            "loss": loss,
            "accuracy": finding.accuracy,
            "disagreement": finding.disagreement,
        }

    @contextmanager
    def _clock(self) -> Iterator["_Clock"]:
        """Seconds of training. All workers start together: nobody's clock runs while others still evaluate."""
        with self.parallel.record.paused():
            dist.barrier()
        clock = _Clock(started_s=time.perf_counter())
        yield clock
        clock.seconds = time.perf_counter() - clock.started_s

    def _step(self, epoch: int, step: int, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        rate = learning_rate(
            self.training,
            step=epoch * self.batches.steps_per_epoch + step,
            steps_per_epoch=self.batches.steps_per_epoch,
            epochs=self.settings.epochs,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.parallel.step()
        self.progress.end_step(epoch, step)
        return loss.item()


@dataclass(slots=True, kw_only=True)
class _Clock:
    started_s: float
    seconds: float = 0.0


@dataclass(slots=True)
class _Progress:
    tell: Tell
    epochs: int
    steps: int
    last_s: float = field(default=0.0)

    def end_step(self, epoch: int, step: int) -> None:
        now = time.monotonic()
        if now - self.last_s > 0.5:
            self.last_s = now
            self.tell({"done": epoch * self.steps + step + 1, "total": self.epochs * self.steps})

    def end_epoch(self, epoch: int, *, loss: float, accuracy: float, is_last: bool) -> None:
        done = (epoch + 1) * self.steps
        told = {"epoch": epoch + 1, "loss": loss, "accuracy": accuracy, "is_last": is_last}
        self.tell({"done": done, "total": self.epochs * self.steps, **told})


def _memory_bytes() -> int:
    """This process's part of the memory in use: shared pages count by the share, so that parts add up."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
