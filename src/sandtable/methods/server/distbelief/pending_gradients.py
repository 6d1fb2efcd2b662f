"""Pending gradients of a shard: gradients of portions wait until the coordinator decides which of them count.

Two replicas may work on one portion, and either may die when only half of the shards have its gradient. So a gradient
is stored under its portion and its sender. It enters the sum when the coordinator, which first heard from that sender
that *all* shards have it, requests so on all shards. Every portion counts once, with the same copy on every shard.
"""

from collections.abc import Sequence

from torch import Tensor

from sandtable.methods.server.message import MalformedError

__all__ = ["PendingGradients"]


class PendingGradients:
    """The gradients of one evaluation at a time; "" is none. At most one gradient per replica is pending."""

    def __init__(self) -> None:
        self.evaluation = ""
        self._waiting: dict[int, dict[str, list[Tensor]]] = {}
        self._counted: set[int] = set()
        self.num_counted = 0
        self.num_dropped = 0

    def open(self, evaluation: str) -> None:
        """Begin an evaluation; drop what is pending for the last one."""
        self.num_dropped += sum(len(senders) for senders in self._waiting.values())
        self.evaluation = evaluation
        self._waiting.clear()
        self._counted.clear()

    def put(self, portion: int, session: str, gradient: Sequence[Tensor]) -> None:
        """Store a copy of the gradient, unless its portion has counted; it replaces the sender's earlier one."""
        if portion in self._counted:
            self.num_dropped += 1
        else:
            self._waiting.setdefault(portion, {})[session] = [tensor.clone() for tensor in gradient]

    def take(self, portion: int, session: str) -> list[Tensor]:
        """Return the gradient that counts; drop others of its portion."""
        senders = self._waiting.pop(portion, {})
        if session not in senders:
            raise MalformedError(f"portion {portion} of {session} must have been pushed, but was not")
        self._counted.add(portion)
        self.num_counted += 1
        self.num_dropped += len(senders) - 1
        return senders[session]
