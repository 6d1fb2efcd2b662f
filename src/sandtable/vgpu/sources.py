"""Sources: which captured rank speaks for which member of a group.

A captured member speaks for itself. A member that does not run is spoken for by its stand-in, the captured rank that
does the same work. A group of 12,288 ranks has only as many sources as there are ranks that run, so an answer looks at
each source once and not at each member.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.vgpu.group_registry import GroupRegistry

__all__ = ["AS_CALLER", "GroupSources", "Source"]

Ints = npt.NDArray[np.int64]

AS_CALLER = -1
"""The place of a group in a stand-in's list where only the place in the asking rank's list is known."""


@dataclass(frozen=True, slots=True)
class Source:
    """A captured rank that speaks for members of a group, and the place of the group in its own list of groups."""

    rank: int
    place: int
    is_member: bool


@dataclass(frozen=True, slots=True, eq=False)
class GroupSources:
    """The sources of one group: member k is spoken for by `sources[index[k]]`."""

    sources: tuple[Source, ...]
    index: npt.NDArray[np.int32]
    packed: bytes
    """`index` as it is sent to a rank."""
    has_stand_ins: bool

    @classmethod
    def of(
        cls, registry: GroupRegistry, entry: int, *, is_captured: npt.NDArray[np.bool_], stand_ins: Ints
    ) -> "GroupSources":
        """Find the sources of group `entry`; `stand_ins` holds the stand-in of every rank of the world."""
        members = registry.members[entry]
        captured = is_captured[members]
        speakers = np.where(captured, members, stand_ins[members])
        presumed = registry.presumed_places(entry)
        places = presumed if registry.is_global(entry) else np.full_like(presumed, AS_CALLER)
        span = len(registry) + 2
        codes = (speakers * span + places + 1) * 2 + captured
        _, first, index = np.unique(codes, return_index=True, return_inverse=True)
        sources = tuple(Source(int(speakers[k]), int(places[k]), bool(captured[k])) for k in first.tolist())
        packed = index.astype(np.int32).ravel()
        return cls(sources, packed, packed.tobytes(), not captured.all())

    def pairs_with(self, other: "GroupSources") -> Ints:
        """Return each combination of a source here and a source there that speak for the same member, once."""
        span = int(other.index.max()) + 1
        codes = np.unique(self.index.astype(np.int64) * span + other.index)
        return np.stack([codes // span, codes % span], axis=1)
