"""Downpour SGD: replicas that train by themselves, and now and then tell the servers what they learned.

    downpour = Downpour(model, exchange=ParameterServer(shards=2), lr=0.05, n_fetch=5, n_push=5)
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        downpour.step()
    downpour.done()

Rain falls into several rivers: each shard is rained on, and drunk from, at its own time. A replica steps locally,
w ← w − α g, and adds g up; after every `n_push` steps the sum goes to the servers, after every `n_fetch` their weights
replace the replica's. Each shard has a thread of its own, and nothing waits for all of them: what a slow shard has
not taken yet is added to what it gets next, and weights are put into the model shard by shard as they arrive. So the
weights of a replica are of different ages, and shards see the replicas in different orders. On the servers Adagrad
(η_i = γ / √Σ g_i²) is what keeps that stable.

Dean et al., "Large Scale Distributed Deep Networks", 2012, section 4.1 and algorithm 7.1.
"""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from sandtable.errors import MethodError
from sandtable.methods.server.client import ServerClient
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.sync.asynchronous import Asynchronous

__all__ = ["Downpour", "DownpourCounters", "check_settings"]

_LEADER = 0
"""The worker that trains alone at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownpourCounters:
    """What a replica has done so far: pushes and fetches by shard, and the seconds its steps waited for servers.

    Bytes are those given to and taken from the sockets, headers included. `communication_s` are the seconds in which a
    message was under way, whether the steps waited for it or not; `held_back_s` those in which `synchronize` waited
    for other replicas.
    """

    num_steps: int
    num_pushes: tuple[int, ...]
    num_fetches: tuple[int, ...]
    waiting_s: float
    communication_s: float
    held_back_s: float
    num_messages: int
    sent_bytes: int
    received_bytes: int
    num_reconnections: int


class Downpour:
    """A replica. Servers run `serve(model, factory, exchange=exchange, sync=Asynchronous())`, best with Adagrad.

    `lr` is the local rate α, which may be set anew at any time. `optimizer`, if given, is not stepped: servers have
    their own. But when a scheduler changes its rates, they go with the pushes and the servers take them over. With
    `warm_start_steps` only worker 0 trains until it has made so many; others wait in the constructor and then begin
    with its weights. `overlap=False` makes every step wait for what it sent.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        exchange: ParameterServer,
        lr: float,
        optimizer: torch.optim.Optimizer | None = None,
        n_fetch: int = 1,
        n_push: int = 1,
        warm_start_steps: int = 0,
        overlap: bool = True,
        store: Store | None = None,
        worker: int | None = None,
    ) -> None:
        check_settings(lr=lr, n_fetch=n_fetch, n_push=n_push, warm_start_steps=warm_start_steps)
        self._lr, self._n_fetch, self._n_push, self._overlap = lr, n_fetch, n_push, overlap
        self._client = ServerClient(
            model, optimizer, sync=Asynchronous(), exchange=exchange, store=store, worker=worker
        )
        self._tables = self._client.tables
        shards = range(self._client.num_shards)
        self._accrued = [[torch.zeros_like(vector) for vector in self._tables.vectors(shard)] for shard in shards]
        self._has_accrued = [False for _ in shards]
        self._under_way: list[Future[bool] | None] = [None for _ in shards]
        self._push_is_due, self._fetch_is_due = [False for _ in shards], [False for _ in shards]
        self._num_pushes, self._num_fetches = [0 for _ in shards], [0 for _ in shards]
        self._threads = ThreadPoolExecutor(len(shards), thread_name_prefix="downpour")
        self._num_steps, self._waiting_s = 0, 0.0
        self._talks = _Talks()
        self._num_alone = warm_start_steps if self.worker == _LEADER else 0
        if self.worker != _LEADER and warm_start_steps:
            self._client.pull_after(warm_start_steps // n_push, of_worker=_LEADER)

    @property
    def worker(self) -> int:
        return self._client.worker

    @property
    def lr(self) -> float:
        return self._lr

    @lr.setter
    def lr(self, rate: float) -> None:
        check_settings(lr=rate, n_fetch=self._n_fetch, n_push=self._n_push, warm_start_steps=0)
        self._lr = rate

    @property
    def counters(self) -> DownpourCounters:
        traffic = self._client.counters
        return DownpourCounters(
            num_steps=self._num_steps,
            num_pushes=tuple(self._num_pushes),
            num_fetches=tuple(self._num_fetches),
            waiting_s=self._waiting_s,
            communication_s=self._talks.seconds + traffic.communication_s,
            held_back_s=traffic.waiting_s,
            num_messages=traffic.num_messages,
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            num_reconnections=traffic.num_reconnections,
        )

    def step(self) -> None:
        """Step locally by what is in `.grad`, forget it, and send and take what is due."""
        self._accrue()
        self._step_locally()
        self._num_steps += 1
        for shard in range(len(self._under_way)):
            self._push_is_due[shard] |= self._num_steps % self._n_push == 0
            self._fetch_is_due[shard] |= self._num_steps % self._n_fetch == 0
        self._land()
        self._launch()
        # What others wait for must be counted push by push: the leader does not run ahead of the servers.
        if not self._overlap or self._num_steps <= self._num_alone:
            self._settle()
        sys.audit("sandtable.step")

    def synchronize(self) -> None:
        """Push what is left, wait until every replica is here, and take the weights: then all have the same."""
        self._flush()
        self._client.synchronize()

    def done(self) -> None:
        """Push what is left and say that this replica has finished."""
        self._flush()
        self._client.done()
        self._threads.shutdown()

    def close(self) -> None:
        """Hang up without a word: servers and the other replicas go on."""
        self._client.close()
        self._threads.shutdown(wait=False)

    def state_dict(self) -> dict[str, Any]:
        """The step, and gradients that have not been pushed. Weights are the servers', in their checkpoints."""
        self._settle()
        accrued = [[vector.clone() for vector in vectors] for vectors in self._accrued]
        return {"num_steps": self._num_steps, "accrued": accrued}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._settle()
        self._num_steps = state["num_steps"]
        for vectors, saved in zip(self._accrued, state["accrued"], strict=True):
            for vector, saved_vector in zip(vectors, saved, strict=True):
                vector.copy_(saved_vector)
        self._has_accrued = [any(bool(vector.any()) for vector in vectors) for vectors in self._accrued]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.done()
        else:
            self.close()

    def _accrue(self) -> None:
        self._tables.gather()
        for shard, vectors in enumerate(self._accrued):
            for total, gradient in zip(vectors, self._tables.vectors(shard), strict=True):
                total.add_(gradient)
            self._has_accrued[shard] = True

    @torch.no_grad()
    def _step_locally(self) -> None:
        for parameter in self._tables.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self._lr)
                parameter.grad = None

    def _launch(self) -> None:
        """Begin what is due, on the shards that are free."""
        for shard, running in enumerate(self._under_way):
            if running is None and (self._push_is_due[shard] or self._fetch_is_due[shard]):
                gradient = self._taken(shard) if self._push_is_due[shard] else None
                self._under_way[shard] = self._threads.submit(self._talk, shard, gradient, self._fetch_is_due[shard])
                self._push_is_due[shard] = self._fetch_is_due[shard] = False

    def _taken(self, shard: int) -> list[Tensor]:
        """What has accrued for this shard; from here on it accrues anew."""
        gradient, self._accrued[shard] = self._accrued[shard], [torch.zeros_like(v) for v in self._accrued[shard]]
        self._has_accrued[shard] = False
        return gradient

    def _talk(self, shard: int, gradient: Sequence[Tensor] | None, fetch: bool) -> bool:
        """In a thread of the shard: one message there and one back. Whether weights have arrived."""
        with self._talks.one_more():
            if gradient is None:
                self._client.pull_shard(shard)
            else:
                self._client.push_shard(shard, gradient, pull=fetch)
                self._num_pushes[shard] += 1
        self._num_fetches[shard] += fetch
        return fetch

    def _land(self) -> None:
        """Put into the model what has arrived, shard by shard; a failure of a shard is raised here."""
        for shard, running in enumerate(self._under_way):
            if running is not None and running.done():
                self._under_way[shard] = None
                if self._result(running):
                    self._tables.scatter([shard])

    def _result(self, running: "Future[bool]") -> bool:
        try:
            return running.result()
        except BaseException:
            self.close()
            raise

    def _settle(self) -> None:
        """Wait for what is under way, and land it."""
        start = time.perf_counter()
        for running in self._under_way:
            if running is not None:
                running.exception()
        self._waiting_s += time.perf_counter() - start
        self._land()

    def _flush(self) -> None:
        """Push everything that has accrued, and wait until it is applied."""
        self._settle()
        self._push_is_due = list(self._has_accrued)
        self._fetch_is_due = [False for _ in self._fetch_is_due]
        self._launch()
        self._settle()


class _Talks:
    """How long at least one talk with a shard was going on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_open, self._since, self._seconds = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._seconds + (time.perf_counter() - self._since if self._num_open else 0.0)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        with self._lock:
            if not self._num_open:
                self._since = time.perf_counter()
            self._num_open += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_open -= 1
                if not self._num_open:
                    self._seconds += time.perf_counter() - self._since


def check_settings(*, lr: float, n_fetch: int, n_push: int, warm_start_steps: int) -> None:
    if not lr >= 0:
        raise MethodError(f"lr must be 0 or more, but got {lr}; 0 leaves all steps to the servers")
    if n_fetch < 1 or n_push < 1:
        raise MethodError(f"n_fetch and n_push must be 1 or more steps, but got ({n_fetch}, {n_push}); 1 is every step")
    if warm_start_steps < 0 or warm_start_steps % n_push:
        raise MethodError(
            f"warm_start_steps must be a multiple of n_push ({n_push}), but got {warm_start_steps}; "
            f"try {-(-max(0, warm_start_steps) // n_push) * n_push}"
        )
