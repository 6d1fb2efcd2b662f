"""The space whose shards are servers: operations go out by name, parts of dot products come back."""

from collections.abc import Callable, Sequence
from typing import Any

from sandtable.errors import MethodError
from sandtable.methods.distbelief.operations import Operation
from sandtable.methods.distbelief.settings import COORDINATOR, Sandblaster
from sandtable.methods.distbelief.space import Space
from sandtable.methods.server.directory import Directory
from sandtable.methods.server.lines import Answer, Lines
from sandtable.methods.server.link import Link, Traffic
from sandtable.methods.server.message import Kind

__all__ = ["RemoteSpace", "ShardRestartedError"]

_LIMIT_BYTES = 1 << 20
"""Of answers to the coordinator: numbers and notes."""


class ShardRestartedError(Exception):
    """A shard has lost what it held. All have to go back to a checkpoint."""


class _FromCoordinator(Link):
    @property
    def caller(self) -> str:
        return "the coordinator"


class RemoteSpace(Space):
    """The coordinator's side. Requests are numbered, and name the life of the shard they are meant for."""

    def __init__(self, settings: Sandblaster, directory: Directory, *, session: str) -> None:
        self._lines = Lines(
            [
                _FromCoordinator(
                    directory,
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
        self._lives = [answer["life"] for answer in self._lines.ask(lambda _, link: link.open())]

    @property
    def traffic(self) -> Traffic:
        return self._lines.traffic

    def run(self, operations: Sequence[Operation]) -> list[float]:
        return self._operate({"operations": [operation.to_wire() for operation in operations]})

    def open(self, evaluation: str, operations: Sequence[Operation]) -> None:
        """Carry out `operations`; then gradients of this evaluation are taken, and its weights given."""
        self._operate({"open": evaluation, "operations": [operation.to_wire() for operation in operations]})

    def count(self, portions: Sequence[tuple[int, str]]) -> None:
        """These gradients count: a portion and the session that pushed it to all shards."""
        self._operate({"count": [list(portion) for portion in portions]})

    def keep(self, iteration: int, notes: dict[str, Any]) -> None:
        """Every shard writes a checkpoint, if one is due."""
        self._checked(
            lambda shard, link: link.request(
                Kind.KEEP, {"life": self._lives[shard], "iteration": iteration, "notes": notes}, clock=0
            )
        )

    def restore(self) -> dict[str, Any] | None:
        """All shards go back to the last iteration that each has on its disk. Its notes, or None if there is none."""
        answers = self._lines.ask(lambda _, link: link.request(Kind.KEPT, {}, clock=0))
        common = set.intersection(*(set(answer["kept"]) for answer in answers))
        if not common:
            return None
        answers = self._lines.ask(lambda _, link: link.request(Kind.RESTORE, {"iteration": max(common)}, clock=0))
        self._lives, self._number = [answer["life"] for answer in answers], 0
        notes = [answer["notes"] for answer in answers]
        if any(other != notes[0] for other in notes):
            raise MethodError(
                f"shards must have checkpoints of one run, but those of iteration {max(common)} differ in their notes; "
                "give each run a directory of its own, or move them away to start from the beginning"
            )
        return dict(notes[0])

    def done(self) -> None:
        """The job has finished: servers may go."""
        self._lines.ask(lambda _, link: link.request(Kind.DONE, {}, clock=0))
        self.close()

    def close(self) -> None:
        self._lines.close()

    def _operate(self, fields: dict[str, Any]) -> list[float]:
        self._number += 1
        answers = self._checked(
            lambda shard, link: link.request(
                Kind.OPERATE, {**fields, "life": self._lives[shard], "number": self._number}, clock=0
            )
        )
        return [sum(parts) for parts in zip(*(answer["values"] for answer in answers), strict=True)]

    def _checked(self, request: Callable[[int, Link], Answer]) -> list[Answer]:
        answers = self._lines.ask(request)
        restarted = [str(shard) for shard, answer in enumerate(answers) if "life" in answer]
        if restarted:
            raise ShardRestartedError(", ".join(restarted))
        return answers
