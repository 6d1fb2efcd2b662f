"""Downpour SGD: every worker is a replica, and the shards of the parameter servers live beside them, one thread each.

DistBelief has machines that only serve. Here all hosts train, by every method alike, and what servers send is counted
as sent by the workers beside which they live.
"""

import time
from dataclasses import dataclass

import torch

from sandtable.errors import StudyError
from sandtable.methods import Asynchronous, ParameterServer
from sandtable.methods.distbelief import downpour
from sandtable.methods.server.hosting import Host, announce, hosting_ranks
from sandtable.methods.wire import Wire
from sandtable.study.kinds.kind import Kind
from sandtable.study.kinds.setup import Setup
from sandtable.study.kinds.stepping import Stepping
from sandtable.study.kinds.trainer import AfterStep, Cost, Trainer
from sandtable.study.settings import StudySettings

__all__ = ["Downpour"]

_OPTIMIZERS = ("Adagrad", "SGD")


@dataclass(frozen=True, kw_only=True)
class Downpour(Kind):
    """`optimizer` is the servers'. `local_rate` is the peak of the replicas' own; the method's learning rate, which is
    the servers', unless given. Both follow the schedule. `shards`: one a worker unless given."""

    optimizer: str = "SGD"
    n_push: int = 1
    n_fetch: int = 1
    local_rate: float | None = None
    warm_start_steps: int = 0
    shards: int | None = None

    def check(self, settings: StudySettings) -> None:
        if self.optimizer not in _OPTIMIZERS:
            raise StudyError(f"optimizer must be one of {_OPTIMIZERS}, but got '{self.optimizer}'; as in the paper")
        downpour.check_settings(
            lr=self.local_rate or 0.0,
            n_fetch=self.n_fetch,
            n_push=self.n_push,
            warm_start_steps=self.warm_start_steps,
        )
        hosting_ranks(self.exchange(settings.workers), settings.workers)

    def exchange(self, workers: int) -> ParameterServer:
        return ParameterServer(shards=workers if self.shards is None else self.shards, timeout_s=_TIMEOUT_S)

    def trainer(self, setup: Setup) -> Trainer:
        return _Trainer(self, setup)


_TIMEOUT_S = 600.0
"""Hosts with a small share of a core may be silent for a while."""


class _Trainer(Stepping):
    _counted: downpour.DownpourCounters

    def __init__(self, kind: Downpour, setup: Setup) -> None:
        super().__init__(setup, setup.own_batches)
        if kind.warm_start_steps > self.steps_per_epoch:
            raise StudyError(
                f"warm_start_steps must be no more than the steps of an epoch ({self.steps_per_epoch}), since replicas "
                f"meet at its end, but got {kind.warm_start_steps}; take fewer, or more images"
            )
        self._kind = kind
        rate = setup.training.learning_rate
        self._local_share = 1.0 if kind.local_rate is None else kind.local_rate / rate
        self._optimizer = self._make_optimizer()
        wire, exchange = Wire(), kind.exchange(setup.workers)
        ranks, self._host = hosting_ranks(exchange, setup.workers), None
        if setup.rank in ranks:
            self._host = Host(
                self.model,
                self._optimizer,
                exchange=exchange,
                sync=Asynchronous(),
                compression=None,
                shard=ranks.index(setup.rank),
                workers=setup.workers,
            )
        self._exchange = announce(exchange, self._host, wire)
        self._replica: downpour.Downpour | None = None
        self._exposed_s = 0.0

    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        """At the end of it all replicas have pushed everything and have the servers' weights."""
        replica = self._joined()
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
        self._joined().lr = rate * self._local_share

    def step(self) -> None:
        self._joined().step()

    def cost(self) -> Cost:
        before, now = self._counted, self._joined().counters
        self._counted = now
        communication_s = now.communication_s - before.communication_s
        # What a replica takes, a server sent: on average workers send both, and receive both.
        moved = now.sent_bytes - before.sent_bytes + now.received_bytes - before.received_bytes
        return Cost(
            communication_s=communication_s,
            synchronisation_s=communication_s + now.held_back_s - before.held_back_s,
            exposed_s=self._exposed_s,
            sent_bytes=moved,
            received_bytes=moved,
            messages=now.num_messages - before.num_messages,
        )

    def close(self) -> None:
        self._joined().done()
        if self._host is not None:
            self._host.join()

    def _joined(self) -> downpour.Downpour:
        """The replica, made on the clock: with a warm start its constructor waits until the first one has trained."""
        if self._replica is None:
            self._replica = downpour.Downpour(
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
        """The servers' own are of this kind. A push is a sum of gradients, and so must the decay of weights be."""
        training, parameters = self.setup.training, self.model.parameters()
        decay = training.weight_decay * self._kind.n_push
        if self._kind.optimizer == "Adagrad":
            return torch.optim.Adagrad(parameters, lr=training.learning_rate, weight_decay=decay)
        return torch.optim.SGD(parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=decay)
