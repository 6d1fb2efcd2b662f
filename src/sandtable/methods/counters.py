"""Counters: what one wire has carried, and how long each use of it took."""

from dataclasses import dataclass, field

__all__ = ["Counters"]


@dataclass(slots=True, kw_only=True)
class Counters:
    """Payload bytes and messages of this rank, and the seconds of every use of the wire, in order.

    All ranks of a wire use it in the same order, so the n-th duration means the same exchange everywhere. A rank that
    had nobody to talk to in an exchange notes infinity.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0
    durations_s: list[float] = field(default_factory=list)

    def add(self, *, sent_bytes: int, received_bytes: int, messages: int) -> None:
        self.sent_bytes += sent_bytes
        self.received_bytes += received_bytes
        self.messages += messages

    def reset(self) -> None:
        self.return_to((0, 0, 0, 0))

    def mark(self) -> tuple[int, int, int, int]:
        """Where the counters stand; `return_to` forgets what came after."""
        return self.sent_bytes, self.received_bytes, self.messages, len(self.durations_s)

    def return_to(self, mark: tuple[int, int, int, int]) -> None:
        self.sent_bytes, self.received_bytes, self.messages, num_durations = mark
        del self.durations_s[num_durations:]
