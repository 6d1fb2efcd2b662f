"""Downpour SGD: replicas that train independently, and push to and fetch from the servers now and then.

    downpour = Downpour(model, exchange=ParameterServer(shards=2), lr=0.05, n_fetch=5, n_push=5)
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        downpour.step()
    downpour.done()

A replica steps locally, w ← w − α g, and accumulates g; every `n_push` steps the sum goes to the servers, and every
`n_fetch` steps their weights replace the replica's. Each shard has its own thread, and nothing waits for all of them:
what a slow shard has not accepted yet is added to its next push, and weights enter the model shard by shard as they
arrive. So the weights of a replica differ in age, and shards see the replicas in different orders. Adagrad on the
servers (η_i = γ / √Σ g_i²) keeps that stable.

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
from sandtable.methods.server.sync import Asynchronous

__all__ = ["Downpour", "DownpourCounters"]

_LEADER = 0
"""The worker that trains alone at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownpourCounters:
    """What a replica has done so far: pushes and fetches by shard, and the seconds its steps waited for servers.

    Bytes are counted at the sockets, headers included. `communication_s` counts the seconds with a message in flight,
    whether the steps waited for it or not; `held_back_s` those in which `synchronize` waited for other replicas.
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

    - `exchange`: the parameter servers, with the same settings as theirs.
    - `lr`: the local rate α, which may be set at any time.
    - `optimizer`: not stepped, since servers have their own; but when a scheduler changes its rates, they go with the
      pushes and the servers adopt them.
    - `n_fetch`, `n_push`: how many local steps between two fetches, and between two pushes.
    - `warm_start_steps`: only worker 0 trains until it has made this many; others wait in the constructor and then
      begin with its weights.
    - `overlap`: False makes every step wait for what it sent.
    - `store`: the key-value store with the servers' addresses; torchrun's unless given.
    - `worker`: this replica's number, known from torchrun unless given.
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
        self.check(lr=lr, n_fetch=n_fetch, n_push=n_push, warm_start_steps=warm_start_steps)
        self._lr, self._n_fetch, self._n_push, self._overlap = lr, n_fetch, n_push, overlap
        self._client = ServerClient(
            model, optimizer, sync=Asynchronous(), exchange=exchange, store=store, worker=worker
        )
        self._flat = self._client.flat_parameters
        shards = range(self._client.num_shards)
        self._accrued = [[torch.zeros_like(vector) for vector in self._flat.vectors(shard)] for shard in shards]
        self._has_accrued = [False for _ in shards]
        self._in_flight: list[Future[bool] | None] = [None for _ in shards]
        self._push_is_due, self._fetch_is_due = [False for _ in shards], [False for _ in shards]
        self._num_pushes, self._num_fetches = [0 for _ in shards], [0 for _ in shards]
        self._threads = ThreadPoolExecutor(len(shards), thread_name_prefix="downpour")
        self._num_steps, self._waiting_s = 0, 0.0
        self._request_clock = _RequestClock()
        self._num_warm_start_steps = warm_start_steps if self.worker == _LEADER else 0
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
        self.check(lr=rate, n_fetch=self._n_fetch, n_push=self._n_push, warm_start_steps=0)
        self._lr = rate

    @property
    def counters(self) -> DownpourCounters:
        traffic = self._client.counters
        return DownpourCounters(
            num_steps=self._num_steps,
            num_pushes=tuple(self._num_pushes),
            num_fetches=tuple(self._num_fetches),
            waiting_s=self._waiting_s,
            communication_s=self._request_clock.seconds + traffic.communication_s,
            held_back_s=traffic.waiting_s,
            num_messages=traffic.num_messages,
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            num_reconnections=traffic.num_reconnections,
        )

    @staticmethod
    def check(*, lr: float, n_fetch: int, n_push: int, warm_start_steps: int) -> None:
        """Refuse settings that cannot work."""
        if not lr >= 0:
            raise MethodError(f"lr must be 0 or more, but got {lr}; 0 leaves all steps to the servers")
        if n_fetch < 1 or n_push < 1:
            raise MethodError(
                f"n_fetch and n_push must be 1 or more steps, but got ({n_fetch}, {n_push}); 1 is every step"
            )
        if warm_start_steps < 0 or warm_start_steps % n_push:
            raise MethodError(
                f"warm_start_steps must be a multiple of n_push ({n_push}), but got {warm_start_steps}; "
                f"try {-(-max(0, warm_start_steps) // n_push) * n_push}"
            )

    def step(self) -> None:
        """Step locally with what is in `.grad`, clear it, and push and fetch what is due."""
        self._accrue()
        self._step_locally()
        self._num_steps += 1
        for shard in range(len(self._in_flight)):
            self._push_is_due[shard] |= self._num_steps % self._n_push == 0
            self._fetch_is_due[shard] |= self._num_steps % self._n_fetch == 0
        self._take_arrived()
        self._send_due()
        # Other replicas wait for the leader's pushes, so the leader does not run ahead of the servers.
        if not self._overlap or self._num_steps <= self._num_warm_start_steps:
            self._settle()
        sys.audit("sandtable.step")

    def synchronize(self) -> None:
        """Push what is left, wait until every replica is here, and fetch: then all have the same weights."""
        self._flush()
        self._client.synchronize()

    def done(self) -> None:
        """Push what is left and report that this replica has finished."""
        self._flush()
        self._client.done()
        self._threads.shutdown()

    def close(self) -> None:
        """Disconnect: servers and the other replicas continue."""
        self._client.close()
        self._threads.shutdown(wait=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the step, and gradients not yet pushed. Weights are in the servers' checkpoints."""
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
        self._flat.gather()
        for shard, vectors in enumerate(self._accrued):
            for total, gradient in zip(vectors, self._flat.vectors(shard), strict=True):
                total.add_(gradient)
            self._has_accrued[shard] = True

    @torch.no_grad()
    def _step_locally(self) -> None:
        for parameter in self._flat.parameters():
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self._lr)
                parameter.grad = None

    def _send_due(self) -> None:
        """Start what is due, on the shards that are free."""
        for shard, running in enumerate(self._in_flight):
            if running is None and (self._push_is_due[shard] or self._fetch_is_due[shard]):
                gradient = self._take_accrued(shard) if self._push_is_due[shard] else None
                self._in_flight[shard] = self._threads.submit(self._request, shard, gradient, self._fetch_is_due[shard])
                self._push_is_due[shard] = self._fetch_is_due[shard] = False

    def _take_accrued(self, shard: int) -> list[Tensor]:
        """Return what has accrued for this shard, and start again from zero."""
        gradient, self._accrued[shard] = self._accrued[shard], [torch.zeros_like(v) for v in self._accrued[shard]]
        self._has_accrued[shard] = False
        return gradient

    def _request(self, shard: int, gradient: Sequence[Tensor] | None, fetch: bool) -> bool:
        """Send one message and receive one, in the shard's thread. Return whether weights have arrived."""
        with self._request_clock.request():
            if gradient is None:
                self._client.pull_shard(shard)
            else:
                self._client.push_shard(shard, gradient, pull=fetch)
                self._num_pushes[shard] += 1
        self._num_fetches[shard] += fetch
        return fetch

    def _take_arrived(self) -> None:
        """Put what has arrived into the model, shard by shard; raise the failure of a shard."""
        for shard, running in enumerate(self._in_flight):
            if running is not None and running.done():
                self._in_flight[shard] = None
                if self._result(running):
                    self._flat.scatter([shard])

    def _result(self, running: "Future[bool]") -> bool:
        try:
            return running.result()
        except BaseException:
            self.close()
            raise

    def _settle(self) -> None:
        """Wait for what is in flight, and put it into the model."""
        start = time.perf_counter()
        for running in self._in_flight:
            if running is not None:
                running.exception()
        self._waiting_s += time.perf_counter() - start
        self._take_arrived()

    def _flush(self) -> None:
        """Push all accrued gradients, and wait until they are applied."""
        self._settle()
        self._push_is_due = list(self._has_accrued)
        self._fetch_is_due = [False for _ in self._fetch_is_due]
        self._send_due()
        self._settle()


class _RequestClock:
    """Measures how long at least one request to a shard was in flight."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_open, self._since, self._seconds = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._seconds + (time.perf_counter() - self._since if self._num_open else 0.0)

    @contextmanager
    def request(self) -> Iterator[None]:
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
