"""The training of one worker: epoch after epoch, by whichever kind of trainer, with one clock for all of them."""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sandtable.study.assignment import Assignment
from sandtable.study.data import load_images
from sandtable.study.evaluation import correct, evaluate
from sandtable.study.kinds.choice import kind_of
from sandtable.study.kinds.setup import Setup
from sandtable.study.method import Method
from sandtable.study.model import build_model

__all__ = ["Tell", "train"]

Tell = Callable[[dict[str, Any]], None]
"""Told what has been done, a few times a second at most."""


def train(assignment: Assignment, index: int, tell: Tell) -> dict[str, Any]:
    """Train configuration `index` to the end; every worker of the process group calls it. What this worker saw."""
    return _Worker(assignment, assignment.settings.methods[index], tell).run()


class _Worker:
    def __init__(self, assignment: Assignment, method: Method, tell: Tell) -> None:
        settings = assignment.settings
        images = load_images(settings.data, assignment.data)
        setup = Setup(
            settings=settings,
            training=settings.training_of(method),
            images=images,
            model=build_model(settings.model, shape=images.shape, num_classes=images.num_classes, seed=settings.seed),
            rank=dist.get_rank(),
            workers=dist.get_world_size(),
        )
        self.settings, self.batches = settings, setup.own_batches
        self.trainer = kind_of(method, importlib.import_module(assignment.methods)).trainer(setup)
        self.progress = _Progress(tell, settings.epochs, self.trainer.steps_per_epoch)

    def run(self) -> dict[str, Any]:
        epochs = [self._epoch(number) for number in range(self.settings.epochs)]
        self.trainer.close()
        return {"epochs": epochs, "memory_bytes": _memory_bytes(), "about": self.trainer.about, **self.replicas}

    def _epoch(self, number: int) -> dict[str, float]:
        is_last = number + 1 == self.settings.epochs
        with self._clock() as training:
            losses = self.trainer.train(number, partial(self.progress.end_step, number))
        with self.trainer.paused():
            loss = _mean_over_workers(losses)
            self.trainer.gather()
            finding = evaluate(self.trainer.model, self.batches)
            if is_last:
                counts = correct(self.trainer.model, self.batches)
                self.replicas = dict(zip(("replica_correct", "tested"), counts, strict=True))
        with self._clock() as joining:
            if is_last:
                self.trainer.finish()
        self.progress.end_epoch(number, loss=loss, accuracy=finding.accuracy, is_last=is_last)
        return {
            **asdict(self.trainer.cost()),
            "seconds": training.seconds + joining.seconds,
            "loss": loss,
            "accuracy": finding.accuracy,
            "disagreement": finding.disagreement,
        }

    @contextmanager
    def _clock(self) -> Iterator["_Clock"]:
        """Seconds of training. All workers start together: nobody's clock runs while others still evaluate."""
        with self.trainer.paused():
            dist.barrier()
        clock = _Clock(started_s=time.perf_counter())
        yield clock
        clock.seconds = time.perf_counter() - clock.started_s


def _mean_over_workers(losses: Sequence[float]) -> float:
    """Of all losses that all workers saw."""
    sums = torch.tensor([sum(losses), len(losses)], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


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
