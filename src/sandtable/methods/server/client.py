"""A worker's side: push gradients, pull weights.

    client = ServerClient(model, sync=Asynchronous(), exchange=ParameterServer(shards=2))
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        client.step()
    client.done()

Each server is spoken to in a thread of its own, so that all of them work at the same time.
"""

import atexit
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from sandtable.errors import MethodError
from sandtable.methods.server.coding import Encoder, SettingsOfCodec, expected_bytes, limit_bytes, lossy
from sandtable.methods.server.directory import directory_for
from sandtable.methods.server.discipline import check_sync
from sandtable.methods.server.lines import Answer, Lines
from sandtable.methods.server.link import Link
from sandtable.methods.server.message import Kind
from sandtable.methods.server.plan import Plan
from sandtable.methods.server.service import Identity
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.server.tables import Tables

__all__ = ["ServerClient", "ServerCounters", "StepCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounters:
    """What a worker has exchanged so far. Bytes are those given to and taken from the sockets, headers included.

    `communication_s` is the time in requests less `waiting_s`, the time servers held this worker back for others.
    `largest_lead` is how many steps it was ahead of the slowest when it went on; `num_late` counts its pushes that came
    after their round (bulk-synchronous, after it was lost and came back) and were not used.
    """

    num_messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    communication_s: float = 0.0
    waiting_s: float = 0.0
    num_pushes: int = 0
    num_pulls: int = 0
    num_late: int = 0
    num_reconnections: int = 0
    largest_lead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """One step of one worker: messages both ways, and bytes of gradients up and weights down."""

    num_messages: int
    sent_bytes: float
    received_bytes: int


class ServerClient:
    """A worker of a parameter-server job. When it is made, it joins and the model takes the servers' weights.

    `optimizer`, if given, is not stepped: servers have their own. But when a scheduler changes its learning rates, they
    are sent along and the servers take them over. `worker` is this worker's number, known from torchrun unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        sync: object,
        exchange: ParameterServer,
        compression: SettingsOfCodec | None = None,
        store: Store | None = None,
        worker: int | None = None,
        seed: int = 0,
    ) -> None:
        check_sync(sync)
        compression = lossy(compression)
        self.worker = _number(exchange, worker)
        self._optimizer = optimizer
        self._compression = compression
        self._first_rates, self._rates_have_changed = _rates(optimizer), False
        self._plan = Plan.make(model, num_shards=exchange.shards, cut=exchange.cut)
        self._tables = Tables(model, self._plan)
        self._encoders = [
            Encoder(parts, compression, self._tables.devices(shard), seed + self.worker)
            for shard, parts in enumerate(self._plan.shards)
        ]
        directory, session = directory_for(exchange, store), uuid.uuid4().hex
        self._lines = Lines(
            [
                Link(
                    directory,
                    Identity(shard=shard, digest=self._plan.digest, sync=repr(sync), compression=repr(compression)),
                    worker=self.worker,
                    session=session,
                    timeout_s=exchange.timeout_s,
                    limit_bytes=limit_bytes(parts),
                )
                for shard, parts in enumerate(self._plan.shards)
            ]
        )
        self._communication_s = self._waiting_s = 0.0
        self._num_pushes = self._num_pulls = self._num_late = self._largest_lead = 0
        self._is_over = False
        welcomes = self._on_all(lambda shard: self._lines.links[shard].open())
        self.clock = max(welcome["clock"] for welcome in welcomes)
        self._barrier = welcomes[0]["barrier"]
        self._align()
        self._clocks = [self.clock] * self.num_shards
        self.pull()
        # Until now it waited for servers to start, which is nobody's communication.
        self._communication_s = self._waiting_s = 0.0
        atexit.register(self._at_exit)

    @property
    def counters(self) -> ServerCounters:
        traffic = self._lines.traffic
        return ServerCounters(
            num_messages=traffic.num_messages,
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            communication_s=self._communication_s,
            waiting_s=self._waiting_s,
            num_pushes=self._num_pushes,
            num_pulls=self._num_pulls,
            num_late=self._num_late,
            num_reconnections=traffic.num_connections - self.num_shards,
            largest_lead=self._largest_lead,
        )

    @property
    def cost(self) -> StepCost:
        """What `step` sends and receives, by formula, without headers."""
        shards = self._plan.shards
        return StepCost(
            num_messages=2 * len(shards),
            sent_bytes=sum(expected_bytes(parts, self._compression) for parts in shards),
            received_bytes=sum(part.num_bytes for parts in shards for part in parts),
        )

    @property
    def tables(self) -> Tables:
        """Gradients and weights of the model as the shards cut them."""
        return self._tables

    @property
    def num_shards(self) -> int:
        return len(self._lines.links)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients only accumulate in here. They do so until `step` anyway; this is for loops that say it."""
        yield

    def step(self) -> None:
        """Push the gradients, pull the weights, forget the gradients: one message to each server and one back."""
        self._push(None, pull=True)
        for parameter in self._tables.parameters():
            parameter.grad = None
        sys.audit("sandtable.step")

    def push(self, gradients: Sequence[Tensor | None] | None = None) -> None:
        """Push what is in `.grad`, or `gradients`: one for each trainable parameter, in the model's order.

        Returns when every server has applied it. The model's weights stay as they are until the next pull.
        """
        self._push(gradients, pull=False)

    def pull(self) -> None:
        """Put the servers' weights into the model."""
        self._gauge(self._on_all(lambda shard: self._request(shard, Kind.PULL, {}, into=self._tables.arrival(shard))))
        self._tables.scatter()
        self._num_pulls += 1

    def push_shard(self, shard: int, vectors: Sequence[Tensor], *, pull: bool = False) -> None:
        """Push a gradient to one shard, a vector for each dtype; with `pull` its weights arrive in the same message.

        For workers that are with each shard as far as that shard is: threads may talk to different shards at the same
        time. Only with `Asynchronous`, and not together with `push` and `step`, which are about all shards. What
        arrived is put into the model by `tables.scatter([shard])`. Changed learning rates go along, as with `push`.
        """
        payload = self._encoders[shard].encode(vectors)
        fields = {
            "clock": self._clocks[shard],
            "pull": pull,
            "lengths": [view.nbytes for view in payload],
            "absent": [],
            **self._options(),
        }
        into = self._tables.arrival(shard) if pull else None
        self._lines.links[shard].request(Kind.PUSH, fields, payload, clock=self._clocks[shard], into=into)
        self._clocks[shard] += 1

    def pull_shard(self, shard: int) -> None:
        """Take the weights of one shard, as `push_shard` does."""
        self._lines.links[shard].request(Kind.PULL, {}, clock=self._clocks[shard], into=self._tables.arrival(shard))

    def pull_after(self, num_updates: int, *, of_worker: int) -> None:
        """Put the servers' weights into the model when every shard has had so many updates, all by `of_worker`.

        Waits as long as that worker is there. If it is lost or done before, the weights are taken as they are.
        """
        wanted = {"after": num_updates, "of_worker": of_worker}

        def pull(shard: int) -> Answer:
            while True:
                answer = self._request(shard, Kind.PULL, wanted, into=self._tables.arrival(shard))
                if "early" not in answer:
                    return answer

        self._on_all(pull)
        self._tables.scatter()
        self._num_pulls += 1

    def synchronize(self) -> None:
        """Wait until every worker is here, then take the weights: afterwards all workers have the same."""
        self._meet()
        self.pull()
        self._meet()

    def done(self) -> None:
        """Say that this worker has finished. Nobody waits for it any more; servers return when all have said so."""
        if self._is_over:
            return
        for shard in range(self.num_shards):
            self._request(shard, Kind.DONE, {})
        self.close()

    def close(self) -> None:
        """Hang up without a word: servers count this worker as lost, and go on without it."""
        self._is_over = True
        self._lines.close()
        atexit.unregister(self._at_exit)

    def state_dict(self) -> dict[str, Any]:
        """What compression holds back. Weights and the optimizer's state are the servers', in their checkpoints."""
        return {"codecs": [[codec and codec.state_dict() for codec in encoder.codecs] for encoder in self._encoders]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for encoder, saved in zip(self._encoders, state["codecs"], strict=True):
            for codec, codec_state in zip(encoder.codecs, saved, strict=True):
                if codec is not None:
                    codec.load_state_dict(codec_state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.done()
        else:
            self.close()

    def _push(self, gradients: Sequence[Tensor | None] | None, *, pull: bool) -> None:
        absent, options = self._tables.gather(gradients), self._options()

        def push(shard: int) -> Answer:
            payload = self._encoders[shard].encode(self._tables.vectors(shard))
            fields = {
                "clock": self.clock,
                "pull": pull,
                "lengths": [view.nbytes for view in payload],
                "absent": self._tables.absent_pieces(shard, absent),
                **options,
            }
            return self._request(shard, Kind.PUSH, fields, payload, into=self._tables.arrival(shard) if pull else None)

        answers = self._on_all(push)
        self._gauge(answers)
        self._num_pushes += 1
        self.clock += 1
        late = [answer["clock"] for answer in answers if answer.get("late")]
        if late:
            self._num_late += 1
            self.clock = max(self.clock, *late)
            self._align()
            self.pull()
        elif pull:
            self._tables.scatter()
            self._num_pulls += 1

    def _options(self) -> dict[str, Any]:
        """What servers shall take over: learning rates that a scheduler has changed."""
        rates = _rates(self._optimizer)
        # Once they have changed they are always sent: another worker, a few steps behind, may have sent older ones.
        self._rates_have_changed = self._rates_have_changed or rates != self._first_rates
        return {"options": rates} if self._rates_have_changed else {}

    def _align(self) -> None:
        """Begin at the same clock on every shard: the earliest that is over on none."""
        while True:
            answers = self._on_all(lambda shard: self._request(shard, Kind.JOIN, {"clock": self.clock}))
            latest = max(answer["clock"] for answer in answers)
            if latest == self.clock:
                return
            self.clock = latest

    def _meet(self) -> None:
        self._barrier += 1
        start = time.perf_counter()
        answer = self._request(0, Kind.BARRIER, {"number": self._barrier})
        self._communication_s += time.perf_counter() - start - answer["waited_s"]
        self._waiting_s += answer["waited_s"]

    def _request(
        self,
        shard: int,
        kind: Kind,
        fields: dict[str, Any],
        payload: Sequence[memoryview] = (),
        into: memoryview | None = None,
    ) -> Answer:
        return self._lines.links[shard].request(kind, fields, payload, clock=self.clock, into=into)

    def _on_all(self, ask: Callable[[int], Answer]) -> list[Answer]:
        """Ask all servers at the same time. If one fails the others are hung up on: the worker cannot go on."""
        if self._is_over:
            raise MethodError("a worker that is done must not exchange any more; make a new ServerClient to join again")
        start = time.perf_counter()
        try:
            answers = self._lines.ask(lambda shard, _: ask(shard))
        except Exception:
            self.close()
            raise
        waited_s = max((answer.get("waited_s", 0.0) for answer in answers), default=0.0)
        self._waiting_s += waited_s
        self._communication_s += time.perf_counter() - start - waited_s
        return answers

    def _gauge(self, answers: Sequence[Answer]) -> None:
        self._largest_lead = max(self._largest_lead, *(answer.get("lead", 0) for answer in answers))

    def _at_exit(self) -> None:
        """A script that ends without `done()` has finished; one that ends by an exception is lost."""
        if getattr(sys, "last_type", None) is None:
            self.done()
        else:
            self.close()


def _number(exchange: ParameterServer, worker: int | None) -> int:
    if worker is not None:
        return worker
    role = exchange.role
    if role.worker is None:
        raise MethodError(f"this rank is the server of shard {role.shard}, not a worker; call serve(...) on it")
    return role.worker


def _rates(optimizer: torch.optim.Optimizer | None) -> dict[str, float] | list[dict[str, float]]:
    if optimizer is None:
        return {}
    rates = [{"lr": float(group["lr"])} for group in optimizer.param_groups if "lr" in group]
    return rates[0] if len(rates) == 1 else rates
