"""What the clock needs to know about one call: how long it takes alone, and how full it makes each link.

Think of a convoy: `latency_ns` is how long the first lorry is on the road, `work_ns` how long the column is behind it.
Other traffic stretches the column, never the distance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Ints", "LinkPattern", "PatternCache", "Transfer"]

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkPattern:
    """Which links an algorithm uses, whatever the size of the message: all groups of one kind together.

    `bytes_per_byte` is what crosses each of `links` per byte of the message, `seconds_per_byte` the time of that byte
    on the fullest link when nothing else is on the wire (or longer, if the algorithm cannot reach any link's rate).
    Latency is counted in steps: `num_local` within nodes, `num_remote` between them, over wires whose delays add up to
    `wire_ns`.
    """

    links: Ints
    bytes_per_byte: Floats
    bandwidth_bytes_per_s: Floats
    seconds_per_byte: float
    num_local: float
    num_remote: float
    wire_ns: float

    @property
    def num_steps(self) -> float:
        return self.num_local + self.num_remote


PatternCache = Callable[[str, Callable[[], LinkPattern]], LinkPattern]
"""Called with an algorithm's name and a function that makes its pattern; makes each pattern once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfer:
    """One collective or point-to-point call, by all groups that do the same at the same time.

    `latency_ns` does not depend on other traffic; `work_ns` is the rest, without other traffic. `wire_share` is the
    share of what crosses a link that is data, not protocol flags. `sm_share` is the share of the device's
    multiprocessors that the kernel keeps busy.
    """

    latency_ns: float
    work_ns: float
    pattern: LinkPattern
    size_bytes: float
    wire_share: float
    sm_share: float
    algorithm: str
    protocol: str

    @property
    def total_ns(self) -> float:
        """The whole duration when nothing else is on the wire."""
        return self.latency_ns + self.work_ns

    @property
    def links(self) -> Ints:
        """The links touched, ascending."""
        return self.pattern.links

    @property
    def bytes_on_links(self) -> Floats:
        """Bytes of data over each of `links` in one call."""
        return self.pattern.bytes_per_byte * self.size_bytes

    @property
    def loads(self) -> Floats:
        """The share of each link's capacity in use during `work_ns`, at most 1."""
        if self.work_ns <= 0:
            return np.zeros(len(self.links))
        capacity = self.pattern.bandwidth_bytes_per_s * (self.wire_share * self.work_ns * 1e-9)
        loads: Floats = np.minimum(self.bytes_on_links / capacity, 1.0)
        return loads
