"""The worker's side: push gradients, pull weights.

    client = ServerClient(model, sync=Asynchronous(), exchange=ParameterServer(shards=2))
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        client.step()
    client.done()

Each server has its own thread, so that all servers work at the same time.
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
from sandtable.methods.server.addresses import address_registry
from sandtable.methods.server.codecs import CodecSettings, Encoder, expected_bytes, limit_bytes, lossy
from sandtable.methods.server.connection import ServerConnection
from sandtable.methods.server.connection_pool import Answer, ConnectionPool
from sandtable.methods.server.flat_parameters import FlatParameters
from sandtable.methods.server.message import Identity, MessageKind
from sandtable.methods.server.settings import ParameterServer
from sandtable.methods.server.shard_plan import ShardPlan
from sandtable.methods.server.sync import ServerSync, check_sync

__all__ = ["ServerClient", "ServerCounters", "StepCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounters:
    """What a worker has exchanged so far. Bytes are counted at the sockets, headers included.

    `communication_s` is the time in requests minus `waiting_s`, the time servers held this worker back for others.
    `largest_lead` is how many steps it was ahead of the slowest when it continued; `num_late` counts pushes that came
    after their round (bulk-synchronous, after the worker was lost and came back) and were not used.
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
    """A worker of a parameter-server job. Its constructor joins the job and puts the servers' weights into the model.

    `optimizer`, if given, is not stepped: servers have their own. But when a scheduler changes its learning rates, they
    are sent along and the servers adopt them. `worker` is this worker's number, known from torchrun unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        sync: ServerSync,
        exchange: ParameterServer,
        compression: CodecSettings | None = None,
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
        self._plan = ShardPlan.make(model, num_shards=exchange.shards, cut=exchange.cut)
        self._flat = FlatParameters(model, self._plan)
        self._encoders = [
            Encoder(parts, compression, self._flat.devices(shard), seed + self.worker)
            for shard, parts in enumerate(self._plan.shards)
        ]
        registry, session = address_registry(exchange, store), uuid.uuid4().hex
        self._pool = ConnectionPool(
            [
                ServerConnection(
                    registry,
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
        welcomes = self._on_all(lambda shard: self._pool.connections[shard].open())
        self.clock = max(welcome["clock"] for welcome in welcomes)
        self._barrier = welcomes[0]["barrier"]
        self._align()
        self._clocks = [self.clock] * self.num_shards
        self.pull()
        # Until now it waited for servers to start, which is not communication.
        self._communication_s = self._waiting_s = 0.0
        atexit.register(self._at_exit)

    @property
    def counters(self) -> ServerCounters:
        traffic = self._pool.traffic
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
        """What `step` sends and receives, computed, without headers."""
        shards = self._plan.shards
        return StepCost(
            num_messages=2 * len(shards),
            sent_bytes=sum(expected_bytes(parts, self._compression) for parts in shards),
            received_bytes=sum(part.num_bytes for parts in shards for part in parts),
        )

    @property
    def flat_parameters(self) -> FlatParameters:
        """Gradients and weights of the model, cut by shard."""
        return self._flat

    @property
    def num_shards(self) -> int:
        return len(self._pool.connections)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients. They do so until `step` anyway; this is for loops that use `no_sync`."""
        yield

    def step(self) -> None:
        """Push the gradients, pull the weights, clear the gradients: one message to each server and one back."""
        self._push(None, pull=True)
        for parameter in self._flat.parameters():
            parameter.grad = None
        sys.audit("sandtable.step")

    def push(self, gradients: Sequence[Tensor | None] | None = None) -> None:
        """Push what is in `.grad`, or `gradients`: one per trainable parameter, in the model's order.

        Returns when every server has applied it. The model's weights do not change until the next pull.
        """
        self._push(gradients, pull=False)

    def pull(self) -> None:
        """Put the servers' weights into the model."""
        self._note_lead(
            self._on_all(lambda shard: self._request(shard, MessageKind.PULL, {}, into=self._flat.receive_view(shard)))
        )
        self._flat.scatter()
        self._num_pulls += 1

    def push_shard(self, shard: int, vectors: Sequence[Tensor], *, pull: bool = False) -> None:
        """Push a gradient to one shard, a vector per dtype; with `pull` its weights arrive in the answer.

        For workers that talk to each shard at its own pace: threads may use different shards at the same time. Only
        with `Asynchronous`, and not together with `push` and `step`, which address all shards.
        `flat_parameters.scatter([shard])` puts what arrived into the model. Changed learning rates go along, as with
        `push`.
        """
        payload = self._encoders[shard].encode(vectors)
        fields = {
            "clock": self._clocks[shard],
            "pull": pull,
            "lengths": [view.nbytes for view in payload],
            "absent": [],
            **self._options(),
        }
        into = self._flat.receive_view(shard) if pull else None
        self._pool.connections[shard].request(MessageKind.PUSH, fields, payload, clock=self._clocks[shard], into=into)
        self._clocks[shard] += 1

    def pull_shard(self, shard: int) -> None:
        """Pull the weights of one shard, as `push_shard` does."""
        self._pool.connections[shard].request(
            MessageKind.PULL, {}, clock=self._clocks[shard], into=self._flat.receive_view(shard)
        )

    def pull_after(self, num_updates: int, *, of_worker: int) -> None:
        """Put the servers' weights into the model when every shard has had this many updates, all by `of_worker`.

        Waits while that worker is present. If it is lost or done before, the current weights are taken.
        """
        wanted = {"after": num_updates, "of_worker": of_worker}

        def pull(shard: int) -> Answer:
            while True:
                answer = self._request(shard, MessageKind.PULL, wanted, into=self._flat.receive_view(shard))
                if "early" not in answer:
                    return answer

        self._on_all(pull)
        self._flat.scatter()
        self._num_pulls += 1

    def synchronize(self) -> None:
        """Wait until every worker is here, then pull: afterwards all workers have the same weights."""
        self._wait_for_all()
        self.pull()
        self._wait_for_all()

    def done(self) -> None:
        """Report that this worker has finished. The others no longer wait for it; servers return when all are done."""
        if self._is_over:
            return
        for shard in range(self.num_shards):
            self._request(shard, MessageKind.DONE, {})
        self.close()

    def close(self) -> None:
        """Disconnect: servers count this worker as lost, and continue without it."""
        self._is_over = True
        self._pool.close()
        atexit.unregister(self._at_exit)

    def state_dict(self) -> dict[str, Any]:
        """Return the compression's residuals. Weights and the optimizer's state are in the servers' checkpoints."""
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
        absent, options = self._flat.gather(gradients), self._options()

        def push(shard: int) -> Answer:
            payload = self._encoders[shard].encode(self._flat.vectors(shard))
            fields = {
                "clock": self.clock,
                "pull": pull,
                "lengths": [view.nbytes for view in payload],
                "absent": self._flat.absent_slices(shard, absent),
                **options,
            }
            return self._request(
                shard, MessageKind.PUSH, fields, payload, into=self._flat.receive_view(shard) if pull else None
            )

        answers = self._on_all(push)
        self._note_lead(answers)
        self._num_pushes += 1
        self.clock += 1
        late = [answer["clock"] for answer in answers if answer.get("late")]
        if late:
            self._num_late += 1
            self.clock = max(self.clock, *late)
            self._align()
            self.pull()
        elif pull:
            self._flat.scatter()
            self._num_pulls += 1

    def _options(self) -> dict[str, Any]:
        """Return options for the servers to adopt: learning rates that a scheduler has changed."""
        rates = _rates(self._optimizer)
        # Once changed they are always sent: another worker, a few steps behind, may have sent older ones.
        self._rates_have_changed = self._rates_have_changed or rates != self._first_rates
        return {"options": rates} if self._rates_have_changed else {}

    def _align(self) -> None:
        """Begin at the same clock on every shard: the earliest that no shard has passed."""
        while True:
            answers = self._on_all(lambda shard: self._request(shard, MessageKind.JOIN, {"clock": self.clock}))
            latest = max(answer["clock"] for answer in answers)
            if latest == self.clock:
                return
            self.clock = latest

    def _wait_for_all(self) -> None:
        self._barrier += 1
        start = time.perf_counter()
        answer = self._request(0, MessageKind.BARRIER, {"number": self._barrier})
        self._communication_s += time.perf_counter() - start - answer["waited_s"]
        self._waiting_s += answer["waited_s"]

    def _request(
        self,
        shard: int,
        kind: MessageKind,
        fields: dict[str, Any],
        payload: Sequence[memoryview] = (),
        into: memoryview | None = None,
    ) -> Answer:
        return self._pool.connections[shard].request(kind, fields, payload, clock=self.clock, into=into)

    def _on_all(self, request: Callable[[int], Answer]) -> list[Answer]:
        """Request from all servers at the same time. If one fails, disconnect from all: the worker cannot continue."""
        if self._is_over:
            raise MethodError("a worker that is done must not exchange again; make a new ServerClient to rejoin")
        start = time.perf_counter()
        try:
            answers = self._pool.request_all(lambda shard, _: request(shard))
        except Exception:
            self.close()
            raise
        waited_s = max((answer.get("waited_s", 0.0) for answer in answers), default=0.0)
        self._waiting_s += waited_s
        self._communication_s += time.perf_counter() - start - waited_s
        return answers

    def _note_lead(self, answers: Sequence[Answer]) -> None:
        self._largest_lead = max(self._largest_lead, *(answer.get("lead", 0) for answer in answers))

    def _at_exit(self) -> None:
        """Report a script that ends without `done()` as finished, and one that ends by an exception as lost."""
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
