"""Sandblaster L-BFGS: every worker is a replica, shards live beside them, and the coordinator beside the first.

It goes by all images at once, as they are: moved ones would be others at every evaluation. An epoch is one evaluation,
so that it has seen as many images as the others when its accuracy is asked for; the decay of weights is in the loss.
"""

import copy
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore

from sandtable.methods import ParameterServer, distbelief
from sandtable.methods.distbelief.portions import Portions
from sandtable.methods.distbelief.working import Replica
from sandtable.methods.server.directory import directory_for
from sandtable.methods.server.hosting import hosting_ranks
from sandtable.methods.server.plan import Plan
from sandtable.methods.server.shard import raw_bytes
from sandtable.methods.server.tables import Tables
from sandtable.study.batches import batches_of
from sandtable.study.kinds.background import in_background, result_beside
from sandtable.study.kinds.conductor import Conductor
from sandtable.study.kinds.kind import Kind
from sandtable.study.kinds.setup import Setup
from sandtable.study.kinds.trainer import AfterStep, Cost, Trainer
from sandtable.study.settings import StudySettings

__all__ = ["Sandblaster"]

_TIMEOUT_S = 600.0
"""Hosts with a small share of a core may be silent for a while."""

_PORTIONS = 10
"""Of each worker's share, unless told."""


@dataclass(frozen=True, kw_only=True)
class Sandblaster(Kind):
    """`portion` images are given out at a time, a tenth of a worker's share unless told; `shards`: one a worker."""

    has_rate: ClassVar[bool] = False

    history: int = 10
    portion: int | None = None
    shards: int | None = None

    def check(self, settings: StudySettings) -> None:
        self.lbfgs(settings)
        Portions(num_samples=1, size=1 if self.portion is None else self.portion)
        self.hosts(settings.workers)

    def lbfgs(self, settings: StudySettings) -> distbelief.LBFGS:
        """It ends when its epochs do."""
        return distbelief.LBFGS(
            history=self.history, max_iterations=settings.epochs, max_evaluations=settings.epochs, loss_tolerance=0.0
        )

    def hosts(self, workers: int) -> tuple[int, ...]:
        """The workers that have a shard, in the order of the shards."""
        return hosting_ranks(ParameterServer(shards=workers if self.shards is None else self.shards), workers)

    def trainer(self, setup: Setup) -> Trainer:
        return _Trainer(self, setup)


class _Trainer(Trainer):
    steps_per_epoch = 1

    def __init__(self, kind: Sandblaster, setup: Setup) -> None:
        self._kind, self._setup, self.model = kind, setup, setup.model
        self._num_samples = setup.all_batches().num_images
        self._hosts = kind.hosts(setup.workers)
        self._job = distbelief.Sandblaster(shards=len(self._hosts), timeout_s=_TIMEOUT_S)
        self._store = PrefixStore("sandblaster", dist.distributed_c10d._get_default_store())
        self._tables = Tables(self.model, Plan.make(self.model, num_shards=len(self._hosts)))
        self._services: list[Future[Any]] = []
        self._shard_weights: Sequence[Tensor] = ()
        if setup.rank in self._hosts:
            self._serve(self._hold, name="shard")
        own_model = copy.deepcopy(self.model)  # a late replica may still compute while accuracy is measured
        directory = directory_for(self._job.places, self._store)
        self._replica = Replica(own_model, self._loss, self._job, directory, number=setup.rank + 1)
        self._serve(self._replica.run, name="replica")
        self._conductor = Conductor() if setup.rank == 0 else None
        self._coordinator: Future[distbelief.CoordinatorReport] | None = None
        self._training_s, self._has_new_weights = 0.0, False
        self._counted = self._counters()

    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        start = time.perf_counter()
        if self._conductor is not None and self._coordinator is None:
            self._coordinator = self._serve(partial(self._coordinate, self._conductor), name="coordinator")
        told = in_background(partial(self._hear, epoch), name="epoch")
        self._has_new_weights, loss = result_beside(told, self._services)
        self._training_s += time.perf_counter() - start
        after_step(0)
        return [] if self._conductor is None else [loss]

    def gather(self) -> None:
        """What shards hold goes to all workers."""
        if not self._has_new_weights:
            return
        for shard, rank in enumerate(self._hosts):
            place = torch.frombuffer(self._tables.arrival(shard), dtype=torch.uint8)
            if rank == self._setup.rank:
                parts = [torch.frombuffer(raw_bytes(vector), dtype=torch.uint8) for vector in self._shard_weights]
                place.copy_(torch.cat(parts))
            dist.broadcast(place, rank)
        self._tables.scatter()

    def finish(self) -> None:
        """Replicas take the result, and everybody ends."""
        start = time.perf_counter()
        if self._conductor is not None:
            self._conductor.let_go()
        for service in self._services:
            result_beside(service, self._services)
        self._training_s += time.perf_counter() - start

    def cost(self) -> Cost:
        before, now = self._counted, self._counters()
        self._counted = now
        spent = {name: now[name] - before[name] for name in now}
        exposed_s = max(0.0, spent["training_s"] - spent["computing_s"])
        # What a replica takes, a server sent: on average workers send both, and receive both.
        return Cost(
            communication_s=spent["communication_s"],
            synchronisation_s=exposed_s,
            exposed_s=exposed_s,
            sent_bytes=spent["bytes"],
            received_bytes=spent["bytes"],
            messages=spent["messages"],
        )

    @property
    def about(self) -> dict[str, Any]:
        return {"training": {"weight_decay": self._setup.training.weight_decay, "learning_rate": None}}

    def _serve(self, function: Any, *, name: str) -> "Future[Any]":
        service = in_background(function, name=name)
        self._services.append(service)
        return service

    def _hold(self) -> distbelief.HolderReport:
        def note(_: int, weights: Sequence[Tensor]) -> None:
            self._shard_weights = weights

        shard = self._hosts.index(self._setup.rank)
        return distbelief.hold(self.model, settings=self._job, after=note, store=self._store, shard=shard)

    def _coordinate(self, conductor: Conductor) -> distbelief.CoordinatorReport:
        share = -(-self._num_samples // self._setup.workers)
        report = distbelief.coordinate(
            settings=self._job,
            num_samples=self._num_samples,
            portion_size=self._kind.portion or -(-share // _PORTIONS),
            lbfgs=self._kind.lbfgs(self._setup.settings),
            after=conductor.stand_still,
            store=self._store,
        )
        conductor.end()
        return report

    def _hear(self, epoch: int) -> tuple[bool, float]:
        """The first worker, who has the coordinator beside it, tells the others when an epoch is over."""
        word = torch.zeros(2, dtype=torch.float64)
        if self._conductor is not None:
            word = torch.tensor(self._conductor.advance(epoch + 1), dtype=torch.float64)
        dist.broadcast(word, 0)
        return bool(word[0]), float(word[1])

    def _loss(self, model: nn.Module, samples: range) -> Tensor:
        """Losses of portions add up, so the decay of weights is shared out, too."""
        images, decay = self._setup.images, self._setup.training.weight_decay
        total = torch.zeros(())
        for inputs, targets in batches_of(images.train, np.arange(samples.start, samples.stop), images):
            total = total + nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
        penalty = torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()
        return (total + len(samples) * decay / 2 * penalty) / self._num_samples

    def _counters(self) -> dict[str, float]:
        """Of the replica; the coordinator tells its few when it has ended."""
        found = [self._replica.traffic]
        if self._coordinator is not None and self._coordinator.done():
            found.append(self._coordinator.result())  # type: ignore[arg-type]
        return {
            "training_s": self._training_s,
            "computing_s": self._replica.computing_s,
            "communication_s": self._replica.communication_s,
            "bytes": sum(each.sent_bytes + each.received_bytes for each in found),
            "messages": sum(each.num_messages for each in found),
        }
