"""Train one worker: epoch after epoch, with any kind of trainer, all timed by the same clock."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from sandtable.events import Listener
from sandtable.study.data import load_images
from sandtable.study.evaluation import count_correct, evaluate
from sandtable.study.events import EpochFinished, MethodAdvanced
from sandtable.study.kinds.registry import kind_of, load_methods
from sandtable.study.kinds.trainer import TrainerSetup
from sandtable.study.method import Method
from sandtable.study.model import build_model
from sandtable.study.results import Epoch, WorkerRecord
from sandtable.study.store import Assignment

__all__ = ["train"]

_EVENT_INTERVAL_S = 0.5


def train(assignment: Assignment, index: int, listen: Listener) -> WorkerRecord:
    """Train configuration `index` to the end; every worker of the process group calls this."""
    return _TrainingLoop(assignment, assignment.settings.methods[index], listen).run()


class _TrainingLoop:
    def __init__(self, assignment: Assignment, method: Method, listen: Listener) -> None:
        settings = assignment.settings
        images = load_images(settings.data, assignment.data)
        setup = TrainerSetup(
            settings=settings,
            training=settings.training_of(method),
            images=images,
            model=build_model(settings.model, shape=images.shape, num_classes=images.num_classes, seed=settings.seed),
            rank=dist.get_rank(),
            workers=dist.get_world_size(),
        )
        self._epochs, self._batches = settings.epochs, setup.own_batches
        self._trainer = kind_of(method, load_methods(assignment.methods)).trainer(setup)
        self._reporter = _Reporter(listen, method.name, epochs=settings.epochs, steps=self._trainer.steps_per_epoch)
        self._replica_correct = self._tested = 0

    def run(self) -> WorkerRecord:
        epochs = tuple(self._run_epoch(number) for number in range(self._epochs))
        self._trainer.close()
        return WorkerRecord(
            epochs=epochs,
            replica_correct=self._replica_correct,
            tested=self._tested,
            memory_bytes=_memory_bytes(),
            resolved_settings=self._trainer.resolved_settings,
        )

    def _run_epoch(self, number: int) -> Epoch:
        is_last = number + 1 == self._epochs
        with self._clock() as training:
            losses = self._trainer.train(number, partial(self._reporter.end_step, number))
        with self._trainer.paused():
            loss = _mean_over_workers(losses)
            self._trainer.gather()
            evaluation = evaluate(self._trainer.model, self._batches)
            if is_last:
                self._replica_correct, self._tested = count_correct(self._trainer.model, self._batches)
        with self._clock() as joining:
            if is_last:
                self._trainer.finish()
        self._reporter.end_epoch(number, loss=loss, accuracy=evaluation.accuracy, is_last=is_last)
        return Epoch(
            **asdict(self._trainer.cost()),
            seconds=training.seconds + joining.seconds,
            loss=loss,
            accuracy=evaluation.accuracy,
            disagreement=evaluation.disagreement,
        )

    @contextmanager
    def _clock(self) -> Iterator["_Clock"]:
        """Time training. All workers start together, so no clock runs while others still evaluate."""
        with self._trainer.paused():
            dist.barrier()
        clock = _Clock(started_s=time.perf_counter())
        yield clock
        clock.seconds = time.perf_counter() - clock.started_s


def _mean_over_workers(losses: Sequence[float]) -> float:
    """Return the mean of all losses of all workers."""
    sums = torch.tensor([sum(losses), len(losses)], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


@dataclass(slots=True, kw_only=True)
class _Clock:
    started_s: float
    seconds: float = 0.0


class _Reporter:
    """Turns steps and epochs into events."""

    def __init__(self, listen: Listener, method: str, *, epochs: int, steps: int) -> None:
        self._listen, self._method = listen, method
        self._steps, self._total_steps = steps, epochs * steps
        self._last_s = 0.0

    def end_step(self, epoch: int, step: int) -> None:
        now = time.monotonic()
        if now - self._last_s > _EVENT_INTERVAL_S:
            self._last_s = now
            num_steps = epoch * self._steps + step + 1
            self._listen(MethodAdvanced(method=self._method, num_steps=num_steps, total_steps=self._total_steps))

    def end_epoch(self, epoch: int, *, loss: float, accuracy: float, is_last: bool) -> None:
        self._listen(
            EpochFinished(
                method=self._method,
                num_steps=(epoch + 1) * self._steps,
                total_steps=self._total_steps,
                epoch=epoch + 1,
                loss=loss,
                accuracy=accuracy,
                is_last=is_last,
            )
        )


def _memory_bytes() -> int:
    """Return this process's proportional share of the memory in use, so that the shares of all workers add up."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
