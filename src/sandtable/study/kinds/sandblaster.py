"""Sandblaster L-BFGS: every worker is a replica, with a shard beside it, and the coordinator runs beside the first.

It evaluates all images at once, without augmentation, which would change them at every evaluation. An epoch is one
evaluation, so that all methods have seen as many images when accuracy is measured. Weight decay is part of the loss.
"""

import copy
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore

from sandtable.methods import server
from sandtable.methods.server import FlatParameters, ParameterServer, ShardPlan, WorkQueue, server_ranks
from sandtable.study.batches import batches_of
from sandtable.study.kinds.epoch_gate import EpochGate
from sandtable.study.kinds.trainer import AfterStep, EpochCost, MethodKind, Trainer, TrainerSetup
from sandtable.study.settings import StudySettings

__all__ = ["SandblasterKind"]

_TIMEOUT_S = 600.0
"""Hosts with a small share of a core may be silent for a while."""

_PORTIONS = 10
"""Per worker's share, by default."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class SandblasterKind(MethodKind):
    """The coordinator assigns `portion` images at a time, by default a tenth of a worker's share.

    There is one shard per worker unless `shards` is given.
    """

    has_rate: ClassVar[bool] = False

    history: int = 10
    portion: int | None = None
    shards: int | None = None

    def check(self, settings: StudySettings) -> None:
        self.lbfgs(settings)
        WorkQueue(num_samples=1, size=1 if self.portion is None else self.portion)
        self.hosts(settings.workers)

    def lbfgs(self, settings: StudySettings) -> server.LBFGS:
        """Return settings of L-BFGS that end with the epochs."""
        return server.LBFGS(
            history=self.history, max_iterations=settings.epochs, max_evaluations=settings.epochs, loss_tolerance=0.0
        )

    def hosts(self, workers: int) -> tuple[int, ...]:
        """Return the workers that have a shard, in the order of the shards."""
        return server_ranks(ParameterServer(shards=workers if self.shards is None else self.shards), workers)

    def trainer(self, setup: TrainerSetup) -> Trainer:
        return SandblasterTrainer(self, setup)


class _Counters(NamedTuple):
    training_s: float
    computing_s: float
    communication_s: float
    moved_bytes: float
    messages: float


class SandblasterTrainer(Trainer):
    """One replica, the shard beside it if this worker has one, and on the first worker the coordinator."""

    steps_per_epoch = 1

    def __init__(self, kind: SandblasterKind, setup: TrainerSetup) -> None:
        self._kind, self._setup, self.model = kind, setup, setup.model
        self._num_samples = setup.all_batches().num_images
        self._hosts = kind.hosts(setup.workers)
        self._job = server.Sandblaster(shards=len(self._hosts), timeout_s=_TIMEOUT_S)
        self._store = PrefixStore("sandblaster", dist.distributed_c10d._get_default_store())
        self._flat = FlatParameters(self.model, ShardPlan.make(self.model, num_shards=len(self._hosts)))
        self._services: list[Future[Any]] = []
        self._shard_weights: Sequence[Tensor] = ()
        if setup.rank in self._hosts:
            self._start(self._hold_shard, name="shard")
        own_model = copy.deepcopy(self.model)  # a late replica may still compute while accuracy is measured
        self._replica = server.Replica(
            own_model, self._loss, settings=self._job, store=self._store, replica=setup.rank + 1
        )
        self._start(self._replica.run, name="replica")
        self._gate = EpochGate() if setup.rank == 0 else None
        self._coordinator: Future[server.CoordinatorReport] | None = None
        self._training_s, self._has_new_weights = 0.0, False
        self._counted = self._counters()

    def train(self, epoch: int, after_step: AfterStep) -> list[float]:
        start = time.perf_counter()
        if self._gate is not None and self._coordinator is None:
            self._coordinator = self._start(partial(self._coordinate, self._gate), name="coordinator")
        epoch_end = _run_in_background(partial(self._wait_for_epoch, epoch), name="epoch")
        self._has_new_weights, loss = _result_unless_failed(epoch_end, self._services)
        self._training_s += time.perf_counter() - start
        after_step(0)
        return [] if self._gate is None else [loss]

    def gather(self) -> None:
        """Send the shards' weights to all workers."""
        if not self._has_new_weights:
            return
        for shard, rank in enumerate(self._hosts):
            received = self._flat.receive_buffer(shard)
            if rank == self._setup.rank:
                received.copy_(torch.cat([vector.view(torch.uint8) for vector in self._shard_weights]))
            dist.broadcast(received, rank)
        self._flat.scatter()

    def finish(self) -> None:
        """Let replicas take the result, and wait until all services have ended."""
        start = time.perf_counter()
        if self._gate is not None:
            self._gate.release()
        for service in self._services:
            _result_unless_failed(service, self._services)
        self._training_s += time.perf_counter() - start

    def cost(self) -> EpochCost:
        before, now = self._counted, self._counters()
        self._counted = now
        spent = _Counters(*(later - earlier for earlier, later in zip(before, now, strict=True)))
        exposed_s = max(0.0, spent.training_s - spent.computing_s)
        # What a replica receives, a shard beside some worker sent: on average workers send and receive both.
        return EpochCost(
            communication_s=spent.communication_s,
            synchronisation_s=exposed_s,
            exposed_s=exposed_s,
            sent_bytes=spent.moved_bytes,
            received_bytes=spent.moved_bytes,
            messages=spent.messages,
        )

    @property
    def resolved_settings(self) -> dict[str, object]:
        return {"training": {"weight_decay": self._setup.training.weight_decay, "learning_rate": None}}

    def _start(self, function: Callable[[], Any], *, name: str) -> "Future[Any]":
        service = _run_in_background(function, name=name)
        self._services.append(service)
        return service

    def _hold_shard(self) -> server.VectorServerReport:
        def note(_: int, weights: Sequence[Tensor]) -> None:
            self._shard_weights = weights

        shard = self._hosts.index(self._setup.rank)
        return server.serve_vectors(self.model, settings=self._job, after=note, store=self._store, shard=shard)

    def _coordinate(self, gate: EpochGate) -> server.CoordinatorReport:
        share = -(-self._num_samples // self._setup.workers)
        report = server.coordinate(
            settings=self._job,
            num_samples=self._num_samples,
            portion_size=self._kind.portion or -(-share // _PORTIONS),
            lbfgs=self._kind.lbfgs(self._setup.settings),
            after=gate.wait,
            store=self._store,
        )
        gate.close()
        return report

    def _wait_for_epoch(self, epoch: int) -> tuple[bool, float]:
        """Wait until the coordinator, beside the first worker, has finished the epoch; the first worker broadcasts it.

        Returns whether there are new weights, and the loss.
        """
        end = torch.zeros(2, dtype=torch.float64)
        if self._gate is not None:
            end = torch.tensor(self._gate.advance(epoch + 1), dtype=torch.float64)
        dist.broadcast(end, 0)
        return bool(end[0]), float(end[1])

    def _loss(self, model: nn.Module, samples: range) -> Tensor:
        """Return a portion's part of the loss. The parts add up, so weight decay is divided among them too."""
        images, decay = self._setup.images, self._setup.training.weight_decay
        total = torch.zeros(())
        for inputs, targets in batches_of(images.train, np.arange(samples.start, samples.stop), images):
            total = total + nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
        penalty = torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()
        return (total + len(samples) * decay / 2 * penalty) / self._num_samples

    def _counters(self) -> _Counters:
        """Read the replica's counters; the coordinator's few are added when it has ended."""
        traffics = [self._replica.traffic]
        if self._coordinator is not None and self._coordinator.done():
            traffics.append(self._coordinator.result())  # type: ignore[arg-type]
        return _Counters(
            training_s=self._training_s,
            computing_s=self._replica.computing_s,
            communication_s=self._replica.communication_s,
            moved_bytes=sum(traffic.sent_bytes + traffic.received_bytes for traffic in traffics),
            messages=sum(traffic.num_messages for traffic in traffics),
        )


def _run_in_background(function: Callable[[], _Result], *, name: str) -> "Future[_Result]":
    """Call the function in a thread that ends with the process."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _result_unless_failed(wanted: "Future[_Result]", services: "Iterable[Future[Any]]") -> _Result:
    """Return the result of `wanted`, or raise the error of a service that fails first."""
    waiting: set[Future[Any]] = {wanted, *services}
    while not wanted.done():
        ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for service in ended - {wanted}:
            service.result()
    return wanted.result()
