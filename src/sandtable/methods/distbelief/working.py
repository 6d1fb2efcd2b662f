"""`work`: be a replica, who computes the gradients of portions until the coordinator has finished."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from sandtable.errors import MethodError
from sandtable.methods.distbelief.settings import Sandblaster
from sandtable.methods.server.coding import limit_bytes
from sandtable.methods.server.directory import Directory, directory_for
from sandtable.methods.server.lines import Lines
from sandtable.methods.server.link import Link, Traffic
from sandtable.methods.server.message import Kind
from sandtable.methods.server.plan import Plan
from sandtable.methods.server.shard import raw_bytes
from sandtable.methods.server.tables import Tables

__all__ = ["Loss", "Replica", "ReplicaReport", "work"]

_LIMIT_BYTES = 1 << 20

Loss = Callable[[nn.Module, range], Tensor]
"""The loss of some samples, as they add up: that of the batch is the sum over its portions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """What one replica did. `num_late` portions were of an evaluation that was over before their gradient arrived."""

    replica: int
    num_portions: int
    num_fetches: int
    num_late: int
    num_messages: int
    sent_bytes: int
    received_bytes: int


def work(
    model: nn.Module,
    loss: Loss,
    *,
    settings: Sandblaster,
    store: Store | None = None,
    replica: int | None = None,
) -> ReplicaReport:
    """Compute gradients of portions until the coordinator has finished; then the model has the result.

    `loss(model, samples)` gives the loss of the samples with these numbers so that losses of portions add up, as
    `cross_entropy(model(x[samples]), y[samples], reduction="sum") / len(x)`. The same samples must give the same
    loss: no dropout. `replica` is this one's number, from 1, known from the rank unless given.
    """
    number = settings.replica if replica is None else replica
    return Replica(model, loss, settings, directory_for(settings.places, store), number=number).run()


class _ToCoordinator(Link):
    @property
    def name(self) -> str:
        return "the coordinator"

    @property
    def caller(self) -> str:
        return f"replica {self._worker}"


class _ToShard(Link):
    @property
    def caller(self) -> str:
        return f"replica {self._worker}"


class Replica:
    """What `work` runs. While it does, another thread may look at its traffic and at where its time went."""

    def __init__(
        self, model: nn.Module, loss: Loss, settings: Sandblaster, directory: Directory, *, number: int
    ) -> None:
        if number < 1:
            raise MethodError(f"replica must be 1 or more, but got {number}; 0 is the coordinator's number")
        self._model, self._loss, self._number = model, loss, number
        plan = Plan.make(model, num_shards=settings.shards)
        self._tables = Tables(model, plan)
        session = uuid.uuid4().hex
        self._lines = Lines(
            [
                _ToShard(
                    directory,
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
            directory,
            settings.identity(settings.shards),
            worker=number,
            session=session,
            timeout_s=settings.timeout_s,
            limit_bytes=_LIMIT_BYTES,
        )
        self._evaluation = ""
        self._num_portions = self._num_fetches = self._num_late = 0
        self.computing_s = 0.0
        """Seconds in which it computed gradients."""
        self.communication_s = 0.0
        """Seconds in which weights and gradients were on their way. What is left of its time, it waited for others."""

    @property
    def traffic(self) -> Traffic:
        """What went to and came from the shards and the coordinator so far."""
        shards, coordinator = self._lines.traffic, self._coordinator.traffic
        return Traffic(
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
            self._lines.close()
            self._coordinator.close()

    def _run(self) -> ReplicaReport:
        self._coordinator.open()
        self._lines.ask(lambda _, link: link.open())
        fields: dict[str, Any] = {}
        while True:
            task = self._coordinator.request(Kind.PORTION, fields, clock=0)
            if "over" in task:
                break
            fields = {} if "portion" not in task else {"report": self._do(task)}
        if not self._fetch(task["over"]):
            raise MethodError(
                f"replica {self._number} must take the result from the servers, but one of them was started again; "
                "start the job again: with checkpoints it goes on from the last one"
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

    def _do(self, task: dict[str, Any]) -> list[Any]:
        """Compute the gradient of a portion and put it on the shards. The report for the coordinator."""
        evaluation, portion = task["evaluation"], task["portion"]
        is_over = evaluation != self._evaluation and not self._fetch(evaluation)
        loss = None
        if not is_over:
            loss = self._compute(range(task["start"], task["stop"]))
            is_over = not self._push(evaluation, portion)
        self._num_portions += not is_over
        self._num_late += is_over
        return [evaluation, portion, None if is_over else loss]

    def _compute(self, samples: range) -> float:
        start = time.perf_counter()
        self._model.zero_grad(set_to_none=True)
        value = self._loss(self._model, samples)
        value.backward()  # type: ignore[no-untyped-call]
        self.computing_s += time.perf_counter() - start
        return value.item()

    def _fetch(self, evaluation: str) -> bool:
        """Take the weights of `evaluation`, unless it is over: once an evaluation, however many portions of it."""
        answers = self._ask(
            lambda shard, link: link.request(
                Kind.PULL, {"evaluation": evaluation}, clock=0, into=self._tables.arrival(shard)
            )
        )
        if any(answer["over"] for answer in answers):
            return False
        self._tables.scatter()
        self._evaluation = evaluation
        self._num_fetches += 1
        return True

    def _push(self, evaluation: str, portion: int) -> bool:
        self._tables.gather()

        def push(shard: int, link: Link) -> dict[str, Any]:
            payload = [raw_bytes(vector.cpu()) for vector in self._tables.vectors(shard)]
            lengths = [view.nbytes for view in payload]
            fields = {"evaluation": evaluation, "portion": portion, "lengths": lengths, "absent": []}
            return link.request(Kind.PUSH, fields, payload, clock=0)

        return not any(answer["over"] for answer in self._ask(push))

    def _ask(self, request: Callable[[int, Link], dict[str, Any]]) -> list[dict[str, Any]]:
        start = time.perf_counter()
        answers = self._lines.ask(request)
        self.communication_s += time.perf_counter() - start
        return answers
