"""Counters: what one wire has carried, and how long each use of it took."""

from dataclasses import dataclass, field

__all__ = ["Counters"]

Mark = tuple[int, int, int, int, float, float]


@dataclass(slots=True, kw_only=True)
class Counters:
    """Payload bytes and messages of this rank, and the seconds of every use of the wire, in order.

    All ranks use a wire in the same order, so the n-th duration means the same exchange everywhere. A rank without a
    partner in an exchange records infinity. Requests to a server have no counterpart on other ranks: the server reports
    how long it held this rank back, so communication and waiting are known at once.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0
    durations_s: list[float] = field(default_factory=list)
    served_s: float = 0.0
    waiting_s: float = 0.0

    def add(self, *, sent_bytes: int, received_bytes: int, messages: int) -> None:
        self.sent_bytes += sent_bytes
        self.received_bytes += received_bytes
        self.messages += messages

    def add_served(self, *, communication_s: float, waiting_s: float) -> None:
        self.served_s += communication_s
        self.waiting_s += waiting_s

    def reset(self) -> None:
        self.return_to((0, 0, 0, 0, 0.0, 0.0))

    def mark(self) -> Mark:
        """Return the current counts; `return_to` forgets whatever came after."""
        now = self.sent_bytes, self.received_bytes, self.messages
        return *now, len(self.durations_s), self.served_s, self.waiting_s

    def return_to(self, mark: Mark) -> None:
        self.sent_bytes, self.received_bytes, self.messages, num_durations, self.served_s, self.waiting_s = mark
        del self.durations_s[num_durations:]
