"""Record: what is measured always, epoch by epoch.

How long is communication, and how long is waiting for somebody slow? In an exchange the rank that comes last waits
for nobody, so the shortest time any rank spent in it is the time of communication; what a rank spent beyond that, it
waited. Ranks compare their times once an epoch, which needs no common clock and nothing during the steps.

Measuring itself is not measured: its time and its bytes are left out, as is whatever is done in `paused()`.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.methods.flat import flatten
from sandtable.methods.lane import Lane
from sandtable.methods.measurement import Measurement, total
from sandtable.methods.wire import Wire

__all__ = ["Record"]


class Record:
    """`epochs` are the measurements so far; `total` is their sum."""

    def __init__(self, wire: Wire, lane: Lane, parameters: Sequence[Tensor]) -> None:
        self.epochs: list[Measurement] = []
        self._wire = wire
        self._lane = lane
        self._parameters = list(parameters)
        self._writers: list[Any] = []
        self._restart()

    @property
    def total(self) -> Measurement:
        """Everything measured in the epochs that have ended."""
        return total(self.epochs)

    def count_step(self) -> None:
        self._num_steps += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done in here (an evaluation, a checkpoint) counts neither as compute nor as communication."""
        before = time.perf_counter()
        marks = [(wire, wire.counters.mark()) for wire in self._wires()]
        waited_s = self._lane.waited_s
        yield
        for wire, mark in marks:
            wire.counters.return_to(mark)
        self._lane.waited_s = waited_s
        self._paused_s += time.perf_counter() - before

    def end_epoch(
        self, *, accuracy: float | None = None, loss: float | None = None, disagreement: bool = True
    ) -> Measurement:
        """Close an epoch. All ranks call it: they compare times and, unless `disagreement` is False, weights."""
        seconds = time.perf_counter() - self._started - self._paused_s
        exposed_s = self._lane.waited_s - self._waited_before_s
        counters = [wire.counters for wire in self._wires()]
        synchronisation_s = sum(
            duration for each in counters for duration in each.durations_s if math.isfinite(duration)
        )
        served_s, held_back_s = sum(each.served_s for each in counters), sum(each.waiting_s for each in counters)
        measurement = Measurement(
            steps=self._num_steps,
            seconds=seconds,
            compute_s=max(seconds - exposed_s, 0.0),
            communication_s=sum(self._shortest_s(wire) for wire in self._wires()) + served_s,
            synchronisation_s=synchronisation_s + served_s + held_back_s,
            exposed_s=exposed_s,
            sent_bytes=sum(each.sent_bytes for each in counters),
            received_bytes=sum(each.received_bytes for each in counters),
            messages=sum(each.messages for each in counters),
            disagreement=self._disagreement() if disagreement else None,
            accuracy=accuracy,
            loss=loss,
        )
        self.epochs.append(measurement)
        for writer in self._writers:
            _write(writer, len(self.epochs), measurement)
        self._restart()
        return measurement

    def to_dict(self) -> dict[str, Any]:
        return {"epochs": [epoch.to_dict() for epoch in self.epochs], "total": self.total.to_dict()}

    def log_to(self, writer: Any) -> None:
        """Write every epoch, past and to come, to a W&B run (`log`) or a TensorBoard writer (`add_scalar`)."""
        self._writers.append(writer)
        for number, epoch in enumerate(self.epochs, start=1):
            _write(writer, number, epoch)

    def _restart(self) -> None:
        for wire in self._wires():
            wire.counters.reset()
        self._num_steps = 0
        self._paused_s = 0.0
        self._waited_before_s = self._lane.waited_s
        self._started = time.perf_counter()

    def _wires(self) -> list[Wire]:
        return [self._wire, *self._wire.branches]

    def _shortest_s(self, wire: Wire) -> float:
        """Of every exchange on that wire in which this rank took part, the time of the rank that waited least."""
        own = torch.tensor(wire.counters.durations_s, dtype=torch.float64, device=self._parameters[0].device)
        if not len(own):
            return 0.0
        shortest = own.clone()
        dist.all_reduce(shortest, op=dist.ReduceOp.MIN, group=wire.group)
        return float(shortest[own.isfinite()].sum())

    @torch.no_grad()
    def _disagreement(self) -> float:
        """(1/P) · Σ_i |w_i - w̄|² / |w̄|²"""
        sums = torch.zeros(2, dtype=torch.float64, device=self._parameters[0].device)
        for vector in flatten(self._parameters):
            vector.load_weights()
            mean = vector.data.clone()
            dist.all_reduce(mean, group=self._wire.group)
            mean /= self._wire.size
            sums[0] += (vector.data - mean).double().square().sum()
            sums[1] += mean.double().square().sum()
        dist.all_reduce(sums, group=self._wire.group)
        return float(sums[0] / sums[1].clamp_min(torch.finfo(torch.float64).tiny))


def _write(writer: Any, number: int, epoch: Measurement) -> None:
    values = {name: value for name, value in epoch.to_dict().items() if value is not None}
    if hasattr(writer, "add_scalar"):
        for name, value in values.items():
            writer.add_scalar(name, value, number)
    else:
        writer.log(values, step=number)
