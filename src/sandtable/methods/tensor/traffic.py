"""Traffic: how often the ranks of a tensor-parallel group met, in what way, and what this rank sent there."""

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Traffic"]


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Collectives and payload bytes by kind: "all-reduce", "all-gather", "reduce-scatter".

    Bytes are those that a ring sends from one rank, S the whole buffer: 2(N-1)/N * S for an all-reduce, (N-1)/N * S for
    the two halves of it.
    """

    calls: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, sent_bytes: int) -> None:
        self.calls[kind] += 1
        self.sent_bytes[kind] += sent_bytes

    def reset(self) -> None:
        self.calls.clear()
        self.sent_bytes.clear()
