"""The vector space whose shards are servers: operations go out by name, parts of dot products come back."""

from collections.abc import Callable, Sequence
from typing import Any

from sandtable.errors import MethodError
from sandtable.methods.server.addresses import AddressRegistry
from sandtable.methods.server.connection import ConnectionTraffic, ServerConnection
from sandtable.methods.server.connection_pool import Answer, ConnectionPool
from sandtable.methods.server.distbelief.operations import Operation
from sandtable.methods.server.distbelief.settings import COORDINATOR, Sandblaster
from sandtable.methods.server.distbelief.space import VectorSpace
from sandtable.methods.server.distbelief.work_queue import CountedPortion
from sandtable.methods.server.message import MessageKind

__all__ = ["RemoteSpace", "ShardRestartedError"]

_LIMIT_BYTES = 1 << 20
"""Limit of answers to the coordinator: numbers and notes."""


class ShardRestartedError(Exception):
    """A shard has lost its state. All must go back to a checkpoint."""


class _FromCoordinator(ServerConnection):
    @property
    def caller(self) -> str:
        return "the coordinator"


class RemoteSpace(VectorSpace):
    """The coordinator's side. Requests are numbered, and name the incarnation of the shard they are meant for."""

    def __init__(self, settings: Sandblaster, registry: AddressRegistry, *, session: str) -> None:
        self._pool = ConnectionPool(
            [
                _FromCoordinator(
                    registry,
                    settings.identity(shard),
                    worker=COORDINATOR,
                    session=session,
                    timeout_s=settings.timeout_s,
                    limit_bytes=_LIMIT_BYTES,
                )
                for shard in range(settings.shards)
            ]
        )
        self._number = 0
        self._incarnations = [
            answer["incarnation"] for answer in self._pool.request_all(lambda _, connection: connection.open())
        ]

    @property
    def traffic(self) -> ConnectionTraffic:
        return self._pool.traffic

    def run(self, operations: Sequence[Operation]) -> list[float]:
        return self._operate({"operations": [operation.to_wire() for operation in operations]})

    def open(self, evaluation: str, operations: Sequence[Operation]) -> None:
        """Carry out `operations`; then accept gradients of this evaluation, and give its weights."""
        self._operate({"open": evaluation, "operations": [operation.to_wire() for operation in operations]})

    def count(self, portions: Sequence[CountedPortion]) -> None:
        """Count these gradients: a portion and the session that pushed it to all shards."""
        self._operate({"count": [list(portion) for portion in portions]})

    def keep(self, iteration: int, notes: dict[str, Any]) -> None:
        """Let every shard write a checkpoint, if one is due."""
        self._checked(
            lambda shard, connection: connection.request(
                MessageKind.KEEP,
                {"incarnation": self._incarnations[shard], "iteration": iteration, "notes": notes},
                clock=0,
            )
        )

    def restore(self) -> dict[str, Any] | None:
        """Restore the last iteration that all shards have on disk. Return its notes, or None if there is none."""
        answers = self._pool.request_all(lambda _, connection: connection.request(MessageKind.KEPT, {}, clock=0))
        common = set.intersection(*(set(answer["kept"]) for answer in answers))
        if not common:
            return None
        answers = self._pool.request_all(
            lambda _, connection: connection.request(MessageKind.RESTORE, {"iteration": max(common)}, clock=0)
        )
        self._incarnations, self._number = [answer["incarnation"] for answer in answers], 0
        notes = [answer["notes"] for answer in answers]
        if any(other != notes[0] for other in notes):
            raise MethodError(
                f"shards must have checkpoints of one run, but those of iteration {max(common)} differ in their notes; "
                "give each run its own directory, or move them away to start from the beginning"
            )
        return dict(notes[0])

    def done(self) -> None:
        """Report that the job has finished: servers may end."""
        self._pool.request_all(lambda _, connection: connection.request(MessageKind.DONE, {}, clock=0))
        self.close()

    def close(self) -> None:
        self._pool.close()

    def _operate(self, fields: dict[str, Any]) -> list[float]:
        self._number += 1
        answers = self._checked(
            lambda shard, connection: connection.request(
                MessageKind.OPERATE,
                {**fields, "incarnation": self._incarnations[shard], "number": self._number},
                clock=0,
            )
        )
        return [sum(parts) for parts in zip(*(answer["values"] for answer in answers), strict=True)]

    def _checked(self, request: Callable[[int, ServerConnection], Answer]) -> list[Answer]:
        answers = self._pool.request_all(request)
        restarted = [str(shard) for shard, answer in enumerate(answers) if "incarnation" in answer]
        if restarted:
            raise ShardRestartedError(", ".join(restarted))
        return answers
