"""Downpour SGD: every worker is a replica, and the shards of the parameter server run beside them, one thread each.

DistBelief has machines that only serve. Here all hosts train, with every method, and what a shard sends counts as sent
by the worker it runs beside.
"""

import time
from dataclasses import dataclass

import torch

from sandtable.errors import StudyError
from sandtable.methods import server
from sandtable.methods.server import Asynchronous, InProcessServer, ParameterServer, server_ranks, share_addresses
from sandtable.study.kinds.trainer import AfterStep, EpochCost, LoopTrainer, MethodKind, Trainer, TrainerSetup
from sandtable.study.settings import StudySettings

__all__ = ["DownpourKind"]

_OPTIMIZERS = ("Adagrad", "SGD")
_TIMEOUT_S = 600.0
"""Hosts with a small share of a core may be silent for a while."""


@dataclass(frozen=True, kw_only=True)
class DownpourKind(MethodKind):
    """`optimizer` and the method's learning rate are the servers'.

    `local_rate` is the replicas' own highest rate, by default the same; both rates follow the schedule. There is one
    shard per worker unless `shards` is given.
    """

    optimizer: str = "SGD"
    n_push: int = 1
    n_fetch: int = 1
    local_rate: float | None = None
    warm_start_steps: int = 0
    shards: int | None = None

    def check(self, settings: StudySettings) -> None:
        if self.optimizer not in _OPTIMIZERS:
            raise StudyError(f"optimizer must be one of {_OPTIMIZERS}, but got '{self.optimizer}'; see the paper")
        server.Downpour.check(
            lr=self.local_rate or 0.0,
            n_fetch=self.n_fetch,
            n_push=self.n_push,
            warm_start_steps=self.warm_start_steps,
        )
        server_ranks(self.exchange(settings.workers), settings.workers)

    def exchange(self, workers: int) -> ParameterServer:
        """Return the parameter server for this many workers."""
        return ParameterServer(shards=workers if self.shards is None else self.shards, timeout_s=_TIMEOUT_S)

    def trainer(self, setup: TrainerSetup) -> Trainer:
        return DownpourTrainer(self, setup)


class DownpourTrainer(LoopTrainer):
    """One replica, and the shard beside it if this worker has one."""

    _counted: server.DownpourCounters

    def __init__(self, kind: DownpourKind, setup: TrainerSetup) -> None:
        super().__init__(setup, setup.own_batches)
        if kind.warm_start_steps > self.steps_per_epoch:
            raise StudyError(
                f"warm_start_steps must be no more than the steps of an epoch ({self.steps_per_epoch}), since replicas "
                f"wait for each other at its end, but got {kind.warm_start_steps}; take fewer, or more images"
            )
        self._kind = kind
        rate = setup.training.learning_rate
        self._local_share = 1.0 if kind.local_rate is None else kind.local_rate / rate
        self._optimizer = self._make_optimizer()
        exchange = kind.exchange(setup.workers)
        ranks, self._host = server_ranks(exchange, setup.workers), None
        if setup.rank in ranks:
            self._host = InProcessServer(
                self.model,
                self._optimizer,
                exchange=exchange,
                sync=Asynchronous(),
                compression=None,
                shard=ranks.index(setup.rank),
                workers=setup.workers,
            )
        self._exchange = share_addresses(exchange, self._host)
        self._replica: server.Downpour | None = None
        self._exposed_s = 0.0

    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        """Train an epoch; at its end all replicas have pushed everything and fetched the servers' weights."""
        replica = self._join()
        waited_s = replica.counters.waiting_s
        losses = super().train(epoch, after_step)
        self._exposed_s = replica.counters.waiting_s - waited_s
        start = time.perf_counter()
        replica.synchronize()
        self._exposed_s += time.perf_counter() - start
        return losses

    def set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._join().lr = rate * self._local_share

    def step(self) -> None:
        self._join().step()

    def cost(self) -> EpochCost:
        before, now = self._counted, self._join().counters
        self._counted = now
        communication_s = now.communication_s - before.communication_s
        # What a replica receives, a shard beside some worker sent: on average workers send and receive both.
        moved_bytes = now.sent_bytes - before.sent_bytes + now.received_bytes - before.received_bytes
        return EpochCost(
            communication_s=communication_s,
            synchronisation_s=communication_s + now.held_back_s - before.held_back_s,
            exposed_s=self._exposed_s,
            sent_bytes=moved_bytes,
            received_bytes=moved_bytes,
            messages=now.num_messages - before.num_messages,
        )

    def close(self) -> None:
        self._join().done()
        if self._host is not None:
            self._host.join()

    def _join(self) -> server.Downpour:
        """Return the replica, created on the clock: in a warm start its constructor waits for the first replica."""
        if self._replica is None:
            self._replica = server.Downpour(
                self.model,
                exchange=self._exchange,
                lr=self.setup.training.learning_rate * self._local_share,
                optimizer=self._optimizer,
                n_fetch=self._kind.n_fetch,
                n_push=self._kind.n_push,
                warm_start_steps=self._kind.warm_start_steps,
                worker=self.setup.rank,
            )
            self._counted = self._replica.counters
        return self._replica

    def _make_optimizer(self) -> torch.optim.Optimizer:
        """Return an optimizer like the servers'. A push is a sum of gradients, so weight decay is multiplied too."""
        training, parameters = self.setup.training, self.model.parameters()
        decay = training.weight_decay * self._kind.n_push
        if self._kind.optimizer == "Adagrad":
            return torch.optim.Adagrad(parameters, lr=training.learning_rate, weight_decay=decay)
        return torch.optim.SGD(parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=decay)
