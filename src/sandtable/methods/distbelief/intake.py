"""The intake of a shard: gradients of portions wait here until the coordinator says which of them count.

Two replicas may work on one portion, and either may die when half of its shards have its gradient. So a gradient is
put down under its portion and its sender, and enters the sum when the coordinator, who heard first from that
sender that *all* shards have it, says so to all shards. Every portion counts once, and on every shard the same copy.
"""

from collections.abc import Sequence

from torch import Tensor

from sandtable.methods.server.message import MalformedError

__all__ = ["Intake"]


class Intake:
    """Of one evaluation at a time; "" is none. At most one gradient a replica waits at any moment."""

    def __init__(self) -> None:
        self.evaluation = ""
        self._waiting: dict[int, dict[str, list[Tensor]]] = {}
        self._counted: set[int] = set()
        self.num_counted = 0
        self.num_dropped = 0

    def open(self, evaluation: str) -> None:
        """Begin an evaluation; what waits for the last one is dropped."""
        self.num_dropped += sum(len(senders) for senders in self._waiting.values())
        self.evaluation = evaluation
        self._waiting.clear()
        self._counted.clear()

    def put(self, portion: int, session: str, gradient: Sequence[Tensor]) -> None:
        """Keep a copy of the gradient, unless its portion has counted already. The same sender's last one is kept."""
        if portion in self._counted:
            self.num_dropped += 1
        else:
            self._waiting.setdefault(portion, {})[session] = [tensor.clone() for tensor in gradient]

    def take(self, portion: int, session: str) -> list[Tensor]:
        """The gradient that counts; others of its portion are dropped."""
        senders = self._waiting.pop(portion, {})
        if session not in senders:
            raise MalformedError(f"portion {portion} of {session} must have been pushed, but was not")
        self._counted.add(portion)
        self.num_counted += 1
        self.num_dropped += len(senders) - 1
        return senders[session]
