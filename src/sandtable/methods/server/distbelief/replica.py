"""`run_replica`: compute the gradients of portions until the coordinator has finished."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from sandtable.errors import MethodError
from sandtable.methods.server.addresses import address_registry
from sandtable.methods.server.codecs import limit_bytes
from sandtable.methods.server.connection import ConnectionTraffic, ServerConnection
from sandtable.methods.server.connection_pool import ConnectionPool
from sandtable.methods.server.distbelief.settings import Sandblaster
from sandtable.methods.server.distbelief.work_queue import PortionReport
from sandtable.methods.server.flat_parameters import FlatParameters
from sandtable.methods.server.message import MessageKind
from sandtable.methods.server.shard import raw_bytes
from sandtable.methods.server.shard_plan import ShardPlan

__all__ = ["Loss", "Replica", "ReplicaReport", "run_replica"]

_LIMIT_BYTES = 1 << 20

Loss = Callable[[nn.Module, range], Tensor]
"""The loss of some samples: that of the batch must be the sum over its portions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """What one replica did. `num_late` counts portions whose evaluation was over before their gradient arrived."""

    replica: int
    num_portions: int
    num_fetches: int
    num_late: int
    num_messages: int
    sent_bytes: int
    received_bytes: int


def run_replica(
    model: nn.Module,
    loss: Loss,
    *,
    settings: Sandblaster,
    store: Store | None = None,
    replica: int | None = None,
) -> ReplicaReport:
    """Compute gradients of portions until the coordinator has finished; then the model has the result.

    `loss(model, samples)` returns the loss of the samples with these numbers; losses of portions must add up, as in
    `cross_entropy(model(x[samples]), y[samples], reduction="sum") / len(x)`. The same samples must give the same
    loss: no dropout. `replica` is this replica's number, from 1, known from the rank unless given.
    """
    return Replica(model, loss, settings=settings, store=store, replica=replica).run()


class _ToCoordinator(ServerConnection):
    @property
    def name(self) -> str:
        return "the coordinator"

    @property
    def caller(self) -> str:
        return f"replica {self._worker}"


class _ToShard(ServerConnection):
    @property
    def caller(self) -> str:
        return f"replica {self._worker}"


class Replica:
    """What `run_replica` runs. Meanwhile another thread may read its traffic and times."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        settings: Sandblaster,
        store: Store | None = None,
        replica: int | None = None,
    ) -> None:
        number = settings.replica if replica is None else replica
        if number < 1:
            raise MethodError(f"replica must be 1 or more, but got {number}; 0 is the coordinator's number")
        self._model, self._loss, self._number = model, loss, number
        plan = ShardPlan.make(model, num_shards=settings.shards)
        self._flat = FlatParameters(model, plan)
        registry, session = address_registry(settings.endpoints, store), uuid.uuid4().hex
        self._pool = ConnectionPool(
            [
                _ToShard(
                    registry,
                    settings.identity(shard, plan.digest),
                    worker=number,
                    session=session,
                    timeout_s=settings.timeout_s,
                    limit_bytes=limit_bytes(parts),
                )
                for shard, parts in enumerate(plan.shards)
            ]
        )
        self._coordinator = _ToCoordinator(
            registry,
            settings.identity(settings.shards),
            worker=number,
            session=session,
            timeout_s=settings.timeout_s,
            limit_bytes=_LIMIT_BYTES,
        )
        self._evaluation = ""
        self._num_portions = self._num_fetches = self._num_late = 0
        self.computing_s = 0.0
        """Seconds spent computing gradients."""
        self.communication_s = 0.0
        """Seconds with weights and gradients in flight. The rest of its time, it waited for others."""

    @property
    def traffic(self) -> ConnectionTraffic:
        """What was exchanged with the shards and the coordinator so far."""
        shards, coordinator = self._pool.traffic, self._coordinator.traffic
        return ConnectionTraffic(
            num_messages=shards.num_messages + coordinator.num_messages,
            sent_bytes=shards.sent_bytes + coordinator.sent_bytes,
            received_bytes=shards.received_bytes + coordinator.received_bytes,
            num_connections=shards.num_connections + coordinator.num_connections,
        )

    def run(self) -> ReplicaReport:
        """Compute portions until the coordinator has finished."""
        try:
            return self._run()
        finally:
            self._pool.close()
            self._coordinator.close()

    def _run(self) -> ReplicaReport:
        self._coordinator.open()
        self._pool.request_all(lambda _, connection: connection.open())
        fields: dict[str, Any] = {}
        while True:
            task = self._coordinator.request(MessageKind.PORTION, fields, clock=0)
            if "over" in task:
                break
            fields = {} if "portion" not in task else {"report": self._do(task)}
        if not self._fetch(task["over"]):
            raise MethodError(
                f"replica {self._number} must take the result from the servers, but one of them was restarted; "
                "start the job again: with checkpoints it resumes from the last one"
            )
        traffic = self.traffic
        return ReplicaReport(
            replica=self._number,
            num_portions=self._num_portions,
            num_fetches=self._num_fetches,
            num_late=self._num_late,
            num_messages=traffic.num_messages,
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
        )

    def _do(self, task: dict[str, Any]) -> PortionReport:
        """Compute the gradient of a portion and push it to the shards. Return the report for the coordinator."""
        evaluation, portion = task["evaluation"], task["portion"]
        is_over = evaluation != self._evaluation and not self._fetch(evaluation)
        loss = None
        if not is_over:
            loss = self._compute(range(task["start"], task["stop"]))
            is_over = not self._push(evaluation, portion)
        self._num_portions += not is_over
        self._num_late += is_over
        return PortionReport(evaluation, portion, None if is_over else loss)

    def _compute(self, samples: range) -> float:
        start = time.perf_counter()
        self._model.zero_grad(set_to_none=True)
        value = self._loss(self._model, samples)
        value.backward()  # type: ignore[no-untyped-call]
        self.computing_s += time.perf_counter() - start
        return value.item()

    def _fetch(self, evaluation: str) -> bool:
        """Take the weights of `evaluation`, once for all its portions. Return False if it is over."""
        answers = self._request_all(
            lambda shard, connection: connection.request(
                MessageKind.PULL, {"evaluation": evaluation}, clock=0, into=self._flat.receive_view(shard)
            )
        )
        if any(answer["over"] for answer in answers):
            return False
        self._flat.scatter()
        self._evaluation = evaluation
        self._num_fetches += 1
        return True

    def _push(self, evaluation: str, portion: int) -> bool:
        self._flat.gather()

        def push(shard: int, connection: ServerConnection) -> dict[str, Any]:
            payload = [raw_bytes(vector.cpu()) for vector in self._flat.vectors(shard)]
            lengths = [view.nbytes for view in payload]
            fields = {"evaluation": evaluation, "portion": portion, "lengths": lengths, "absent": []}
            return connection.request(MessageKind.PUSH, fields, payload, clock=0)

        return not any(answer["over"] for answer in self._request_all(push))

    def _request_all(self, request: Callable[[int, ServerConnection], dict[str, Any]]) -> list[dict[str, Any]]:
        start = time.perf_counter()
        answers = self._pool.request_all(request)
        self.communication_s += time.perf_counter() - start
        return answers
