"""The server of one shard of the vectors: it carries out the coordinator's requests, and collects gradients.

The coordinator's requests change the vectors, so none may be carried out twice or left out: they are numbered, and the
last answer is kept in case it was lost. They also name the server's *incarnation*. A server that was restarted, or
restored from a checkpoint, has another; it then answers only with that, and the coordinator knows that all servers must
go back to a common checkpoint.
"""

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from sandtable.errors import MethodError
from sandtable.methods.server.addresses import address_registry
from sandtable.methods.server.codecs import Decoder, limit_bytes
from sandtable.methods.server.distbelief.named_vectors import NamedVectors
from sandtable.methods.server.distbelief.operations import Operation
from sandtable.methods.server.distbelief.pending_gradients import PendingGradients
from sandtable.methods.server.distbelief.sessions import Caller, SessionHandler
from sandtable.methods.server.distbelief.settings import COORDINATOR, Sandblaster
from sandtable.methods.server.distbelief.shard_checkpoints import ShardCheckpoints
from sandtable.methods.server.distbelief.work_queue import CountedPortion
from sandtable.methods.server.listener import DRAIN_S, POLL_S, join_all, listen, termination_event
from sandtable.methods.server.message import Identity, MalformedError, MessageKind, ServerMessage
from sandtable.methods.server.request_handler import RefusedError, ServerReply
from sandtable.methods.server.settings import Checkpoints
from sandtable.methods.server.shard import initial_weights
from sandtable.methods.server.shard_plan import ShardPlan

__all__ = ["VectorServer", "VectorServerReport", "serve_vectors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorServerReport:
    """What one server did. Dropped gradients were late, or another copy of their portion had counted."""

    shard: int
    num_operations: int
    num_counted: int
    num_dropped: int
    num_checkpoints: int
    was_stopped: bool


def serve_vectors(
    model: nn.Module,
    *,
    settings: Sandblaster,
    checkpoints: Checkpoints | None = None,
    after: Callable[[int, Sequence[Tensor]], None] | None = None,
    store: Store | None = None,
    shard: int | None = None,
) -> VectorServerReport:
    """Serve a shard of the weights of `model`, of gradients and of the history, until the coordinator has finished.

    With `checkpoints` everything is saved after every `checkpoints.every`-th iteration; a server that dies may be
    restarted, and all go back to the last iteration that every shard has. `after` is called before the first iteration
    and after each, with its number and a copy of this shard's weights, a vector per dtype. `shard` is known from the
    rank unless given.
    """
    number = settings.shard if shard is None else shard
    if not 0 <= number < settings.shards:
        raise MethodError(f"shard must be one of 0 to {settings.shards - 1}, but got {number}; number servers from 0")
    plan = ShardPlan.make(model, num_shards=settings.shards)
    parts = plan.shards[number]
    shard_checkpoints = None
    if checkpoints is not None:
        shard_checkpoints = ShardCheckpoints(checkpoints, shard=number, num_shards=settings.shards, digest=plan.digest)
    server = VectorServer(
        NamedVectors(initial_weights(model, parts)),
        Decoder(parts, None),
        for_coordinator=settings.identity(number),
        for_replicas=settings.identity(number, plan.digest),
        checkpoints=shard_checkpoints,
        after=after,
        timeout_s=settings.timeout_s,
    )
    with (
        termination_event() as stop,
        listen(
            server.serve_connection,
            registry=address_registry(settings.endpoints, store),
            endpoint=number,
            name=f"the server of shard {number}",
            limit_bytes=limit_bytes(parts),
            timeout_s=settings.timeout_s,
            close=server.close,
        ) as threads,
    ):
        _watch(server, stop, shard=number, timeout_s=settings.timeout_s)
        if not stop.is_set():
            join_all(threads, DRAIN_S)
    return VectorServerReport(
        shard=number,
        num_operations=server.num_operations,
        num_counted=server.pending.num_counted,
        num_dropped=server.pending.num_dropped,
        num_checkpoints=server.num_checkpoints,
        was_stopped=stop.is_set(),
    )


class VectorServer(SessionHandler):
    """State of one shard and the answer to each kind of message."""

    def __init__(
        self,
        vectors: NamedVectors,
        decoder: Decoder,
        *,
        for_coordinator: Identity,
        for_replicas: Identity,
        checkpoints: ShardCheckpoints | None,
        after: Callable[[int, Sequence[Tensor]], None] | None = None,
        timeout_s: float,
    ) -> None:
        super().__init__(timeout_s=timeout_s)
        self._vectors, self._decoder, self._checkpoints, self._after = vectors, decoder, checkpoints, after
        self._for_coordinator, self._for_replicas = for_coordinator, for_replicas
        self._coordinator = ""
        self._incarnation, self._number = uuid.uuid4().hex, 0
        self._last_answer: dict[str, Any] = {}
        self.pending = PendingGradients()
        self.is_done = False
        self.num_operations = 0
        self.num_checkpoints = 0

    def identity_for(self, number: int) -> Identity:
        return self._for_coordinator if number == COORDINATOR else self._for_replicas

    def welcome(self, caller: Caller) -> dict[str, Any]:
        if caller.number == COORDINATOR and caller.session != self._coordinator:
            self._coordinator = caller.session
            self._begin_incarnation()
        return {"incarnation": self._incarnation}

    def on_disconnect(self, caller: Caller) -> None:
        """Do nothing: a caller may come back, and `serve_vectors` limits the coordinator's absence."""

    @property
    def has_coordinator(self) -> bool:
        """Whether the coordinator is connected. Read with the lock held."""
        return any(caller.number == COORDINATOR for caller in self.callers)

    def answer(self, caller: Caller, message: ServerMessage) -> ServerReply:
        if message.kind is MessageKind.PULL:
            return self._pull(message)
        if message.kind is MessageKind.PUSH:
            return self._push(caller, message)
        with self.changed:
            self.check_open()
            if caller != Caller(COORDINATOR, self._coordinator):
                raise RefusedError(f"only the current coordinator may send {message.kind.name}")
            if message.kind is MessageKind.KEPT:
                return ServerReply({"kept": [] if self._checkpoints is None else self._checkpoints.kept})
            if message.kind is MessageKind.RESTORE:
                return ServerReply(self._restore(message.integer("iteration")))
            if message.kind is MessageKind.DONE:
                self.is_done = True
                self.changed.notify_all()
                return ServerReply({})
            if message.text("incarnation") != self._incarnation:
                return ServerReply({"incarnation": self._incarnation})
            if message.kind is MessageKind.OPERATE:
                return ServerReply(self._operate(message))
            if message.kind is MessageKind.KEEP:
                return ServerReply(self._keep(message))
        raise MalformedError(f"a server of vectors does not answer {message.kind.name}")

    # Replicas

    def _pull(self, message: ServerMessage) -> ServerReply:
        with self.changed:
            self.check_open()
            if message.text("evaluation") != self.pending.evaluation:
                return ServerReply({"over": True})
            return ServerReply({"over": False}, [vector.clone() for vector in self._vectors["weights"]])

    def _push(self, caller: Caller, message: ServerMessage) -> ServerReply:
        portion, gradient = message.integer("portion"), self._decoder.decode(message)
        with self.changed:
            self.check_open()
            over = message.text("evaluation") != self.pending.evaluation
            if not over:
                self.pending.put(portion, caller.session, gradient.vectors)
            return ServerReply({"over": over})

    # The coordinator

    def _operate(self, message: ServerMessage) -> dict[str, Any]:
        number = message.integer("number")
        if number == self._number:
            return self._last_answer
        if number != self._number + 1:
            raise MalformedError(f"request {self._number + 1} must be next, but got {number}")
        operations = [Operation.from_wire(operation) for operation in message.fields.get("operations", [])]
        for portion, session in _counted(message):
            for total, part in zip(self._vectors["gradient"], self.pending.take(portion, session), strict=True):
                total.add_(part)
        if "open" in message.fields:
            self.pending.open(message.text("open"))
        values = [self._vectors.apply(operation) for operation in operations]
        self.num_operations += len(operations)
        self._number = number
        self._last_answer = {"values": [value for value in values if value is not None]}
        return self._last_answer

    def _keep(self, message: ServerMessage) -> dict[str, Any]:
        iteration = message.integer("iteration")
        if self._checkpoints is not None:
            notes = message.fields.get("notes")
            if type(notes) is not dict:
                raise MalformedError(f"notes must be a JSON object, but are {notes!r}")
            self.num_checkpoints += self._checkpoints.keep(iteration, self._vectors, notes)
        if self._after is not None:
            self._after(iteration, [vector.clone() for vector in self._vectors["weights"]])
        return {}

    def _restore(self, iteration: int) -> dict[str, Any]:
        notes = None if self._checkpoints is None else self._checkpoints.restore(iteration, self._vectors)
        if notes is None:
            raise RefusedError(f"iteration {iteration} must be on disk to go back to it, but is not")
        self._begin_incarnation()
        self.pending.open("")
        return {"incarnation": self._incarnation, "notes": notes}

    def _begin_incarnation(self) -> None:
        self._incarnation, self._number, self._last_answer = uuid.uuid4().hex, 0, {}


def _counted(message: ServerMessage) -> list[CountedPortion]:
    """Return the portions that count, each with the session whose gradient it is."""
    pairs = message.fields.get("count", [])
    if type(pairs) is not list or not all(type(pair) is list and list(map(type, pair)) == [int, str] for pair in pairs):
        raise MalformedError(f"what counts must be pairs of a portion and a session, but is {pairs!r}")
    return [CountedPortion(*pair) for pair in pairs]


def _watch(server: VectorServer, stop: threading.Event, *, shard: int, timeout_s: float) -> None:
    """Return when the coordinator has finished or `stop` is set; it may be absent for `timeout_s`."""
    seen = time.monotonic()
    with server.changed:
        while not server.is_done and not stop.is_set():
            if server.failure is not None:
                raise server.failure
            now = time.monotonic()
            if server.has_coordinator:
                seen = now
            elif now - seen > timeout_s:
                raise MethodError(
                    f"the server of shard {shard} must have a coordinator, but had none for {timeout_s:g} s; "
                    "start all again: with checkpoints they resume from the last one"
                )
            server.changed.wait(POLL_S)
