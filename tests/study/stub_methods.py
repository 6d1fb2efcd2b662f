"""A stand-in for `sandtable.methods` with the same surface: bulk-synchronous all-reduce and local SGD, nothing else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["AllReduce", "BulkSynchronous", "DataParallel", "LocalSGD", "NoCompression", "check_combination"]


@dataclass(frozen=True)
class BulkSynchronous:
    period: int = 1


@dataclass(frozen=True)
class LocalSGD:
    period: int


@dataclass(frozen=True)
class AllReduce:
    pass


@dataclass(frozen=True)
class NoCompression:
    pass


class Record:
    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self.now: dict[str, float] = {}
        self.clear()

    def clear(self) -> None:
        times = ("communication_s", "synchronisation_s", "exposed_s")
        self.now = dict.fromkeys((*times, "sent_bytes", "received_bytes", "messages"), 0.0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        yield

    def end_epoch(self, **given: Any) -> None:
        self.epochs.append({**self.now, **given})
        self.clear()

    def to_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}


class DataParallel:
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sync: Any,
        exchange: Any,
        compression: Any,
        seed: int,
    ) -> None:
        self.model, self.optimizer, self.sync, self.record = model, optimizer, sync, Record()
        self.steps = 0
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)

    def step(self) -> None:
        self.steps += 1
        if isinstance(self.sync, BulkSynchronous):
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                self._mean(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if isinstance(self.sync, LocalSGD) and self.steps % self.sync.period == 0:
            self.synchronize()

    def close(self) -> None:
        """There is nothing to end."""

    def synchronize(self) -> None:
        for parameter in self.model.parameters():
            self._mean(parameter.data)

    def _mean(self, tensor: torch.Tensor) -> None:
        start = time.perf_counter()
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
        took = time.perf_counter() - start
        for name, value in (
            ("communication_s", took),
            ("synchronisation_s", took),
            ("exposed_s", took),
            ("messages", 1),
        ):
            self.record.now[name] += value
        self.record.now["sent_bytes"] += tensor.nbytes
        self.record.now["received_bytes"] += tensor.nbytes


def check_combination(sync: Any, exchange: Any, compression: Any, *, num_ranks: int) -> None:
    """All of these work together."""
