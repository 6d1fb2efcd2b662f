"""A holder: the server of one shard of the vectors. It carries out what the coordinator asks, and takes gradients in.

Requests of the coordinator change the vectors, so none may be carried out twice or left out: they are numbered, and the
answer to the last is kept for the case that it was lost. They also name the holder's *life*. A holder that was started
again, or put back to a checkpoint, has another; it then answers only with that, and the coordinator knows that
everybody has to go back to a common checkpoint.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sandtable.methods.distbelief.intake import Intake
from sandtable.methods.distbelief.keeper import Keeper
from sandtable.methods.distbelief.operations import Operation
from sandtable.methods.distbelief.sessions import Caller, SessionClerk
from sandtable.methods.distbelief.settings import COORDINATOR
from sandtable.methods.distbelief.vectors import Vectors
from sandtable.methods.server.clerk import RefusedError, Reply
from sandtable.methods.server.coding import Decoder
from sandtable.methods.server.message import Kind, MalformedError, Message
from sandtable.methods.server.service import Identity

__all__ = ["Holder"]


class Holder(SessionClerk):
    """State of one shard and the answer to each kind of message."""

    def __init__(
        self,
        vectors: Vectors,
        decoder: Decoder,
        *,
        for_coordinator: Identity,
        for_replicas: Identity,
        keeper: Keeper | None,
        after: Callable[[int, Sequence[Tensor]], None] | None = None,
        timeout_s: float,
    ) -> None:
        super().__init__(timeout_s=timeout_s)
        self._vectors, self._decoder, self._keeper, self._after = vectors, decoder, keeper, after
        self._for_coordinator, self._for_replicas = for_coordinator, for_replicas
        self._coordinator = ""
        self._life, self._number = uuid.uuid4().hex, 0
        self._last_answer: dict[str, Any] = {}
        self.intake = Intake()
        self.is_done = False
        self.num_operations = 0
        self.num_checkpoints = 0

    def identity_for(self, number: int) -> Identity:
        return self._for_coordinator if number == COORDINATOR else self._for_replicas

    def welcome(self, caller: Caller) -> dict[str, Any]:
        if caller.number == COORDINATOR and caller.session != self._coordinator:
            self._coordinator = caller.session
            self._begin_life()
        return {"life": self._life}

    def part(self, caller: Caller) -> None:
        """Whoever goes may come back; how long the coordinator may stay away is watched elsewhere."""

    @property
    def has_coordinator(self) -> bool:
        """With the lock held."""
        return any(caller.number == COORDINATOR for caller in self.callers)

    def answer(self, caller: Caller, message: Message) -> Reply:
        if message.kind is Kind.PULL:
            return self._pull(message)
        if message.kind is Kind.PUSH:
            return self._push(caller, message)
        with self.changed:
            self.check_open()
            if caller != Caller(COORDINATOR, self._coordinator):
                raise RefusedError(f"only the coordinator may send {message.kind.name}, or another has taken its place")
            if message.kind is Kind.KEPT:
                return {"kept": [] if self._keeper is None else self._keeper.kept}, ()
            if message.kind is Kind.RESTORE:
                return self._restore(message.integer("iteration")), ()
            if message.kind is Kind.DONE:
                self.is_done = True
                self.changed.notify_all()
                return {}, ()
            if message.text("life") != self._life:
                return {"life": self._life}, ()
            if message.kind is Kind.OPERATE:
                return self._operate(message), ()
            if message.kind is Kind.KEEP:
                return self._keep(message), ()
        raise MalformedError(f"a holder of vectors does not answer {message.kind.name}")

    # Replicas

    def _pull(self, message: Message) -> Reply:
        with self.changed:
            self.check_open()
            if message.text("evaluation") != self.intake.evaluation:
                return {"over": True}, ()
            return {"over": False}, [vector.clone() for vector in self._vectors["weights"]]

    def _push(self, caller: Caller, message: Message) -> Reply:
        portion, gradient = message.integer("portion"), self._decoder.decode(message)
        with self.changed:
            self.check_open()
            over = message.text("evaluation") != self.intake.evaluation
            if not over:
                self.intake.put(portion, caller.session, gradient.vectors)
            return {"over": over}, ()

    # The coordinator

    def _operate(self, message: Message) -> dict[str, Any]:
        number = message.integer("number")
        if number == self._number:
            return self._last_answer
        if number != self._number + 1:
            raise MalformedError(f"request {self._number + 1} must be next, but got {number}")
        operations = [Operation.from_wire(one) for one in message.fields.get("operations", [])]
        for portion, session in _counted(message):
            for total, part in zip(self._vectors["gradient"], self.intake.take(portion, session), strict=True):
                total.add_(part)
        if "open" in message.fields:
            self.intake.open(message.text("open"))
        values = [self._vectors.apply(operation) for operation in operations]
        self.num_operations += len(operations)
        self._number = number
        self._last_answer = {"values": [value for value in values if value is not None]}
        return self._last_answer

    def _keep(self, message: Message) -> dict[str, Any]:
        iteration = message.integer("iteration")
        if self._keeper is not None:
            notes = message.fields.get("notes")
            if type(notes) is not dict:
                raise MalformedError(f"notes must be a JSON object, but are {notes!r}")
            self.num_checkpoints += self._keeper.keep(iteration, self._vectors, notes)
        if self._after is not None:
            self._after(iteration, [vector.clone() for vector in self._vectors["weights"]])
        return {}

    def _restore(self, iteration: int) -> dict[str, Any]:
        notes = None if self._keeper is None else self._keeper.restore(iteration, self._vectors)
        if notes is None:
            raise RefusedError(f"iteration {iteration} must be on the disk to go back to it, but is not")
        self._begin_life()
        self.intake.open("")
        return {"life": self._life, "notes": notes}

    def _begin_life(self) -> None:
        self._life, self._number, self._last_answer = uuid.uuid4().hex, 0, {}


def _counted(message: Message) -> list[tuple[int, str]]:
    """The portions that count, each with the session whose gradient it is."""
    given = message.fields.get("count", [])
    if type(given) is not list or not all(type(one) is list and [type(e) for e in one] == [int, str] for one in given):
        raise MalformedError(f"what counts must be pairs of a portion and a session, but is {given!r}")
    return [(portion, session) for portion, session in given]
