"""How many rings fit into a node whose GPUs are joined pair by pair, not through a switch.

In a DGX-1 the eight GPUs form a cube with diagonals: a pair has two, one or no NVLinks. A ring over some of the GPUs
can use a link once in each direction, so the rate of a ring all-reduce depends on which GPUs take part. Two of them
may have a sixth of what all eight have.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from sandtable.cluster.node import NodeKind

__all__ = ["pair_share", "ring_share"]


def ring_share(kind: NodeKind, slots: Sequence[int]) -> float:
    """Return the share of its port's bandwidth that a GPU can use in rings over `slots`: 1 through a switch."""
    links = kind.scale_up.mesh
    if not links or len(slots) < 2:
        return 1.0
    most = max(sum(links[slot]) for slot in slots)
    return min(1.0, _num_rings(links, tuple(sorted(slots))) / most)


def pair_share(kind: NodeKind, src: int, dst: int) -> float:
    """Return the share of its port's bandwidth that a GPU has towards another; via a third if no link joins them."""
    links = kind.scale_up.mesh
    return max(1, links[src][dst]) / sum(links[src]) if links else 1.0


@lru_cache(maxsize=256)
def _num_rings(links: tuple[tuple[int, ...], ...], slots: tuple[int, ...]) -> int:
    """Count the directed rings over `slots` that use each link at most once in each direction.

    Where no ring exists, data passes through GPUs in between, and the GPU with fewest links decides.
    """
    free = [[links[a][b] for b in slots] for a in slots]
    if len(slots) == 2:
        return max(1, free[0][1])
    rings = _most_rings(free)
    return 2 * rings if rings else max(1, min(sum(row) for row in free))


def _most_rings(free: list[list[int]], limit: int = 3) -> int:
    """Return the most undirected rings that share no link, by trying; `free` is left as it was."""
    if limit == 0:
        return 0
    best = 0
    for ring in _rings(free, [0]):
        pairs = list(zip(ring, ring[1:] + ring[:1], strict=True))
        for a, b in pairs:
            free[a][b] -= 1
            free[b][a] -= 1
        best = max(best, 1 + _most_rings(free, limit - 1))
        for a, b in pairs:
            free[a][b] += 1
            free[b][a] += 1
        if best == limit:
            break
    return best


def _rings(free: list[list[int]], path: list[int]) -> Iterator[list[int]]:
    """Yield every way to continue `path` through all others and back to the first."""
    if len(path) == len(free):
        if free[path[-1]][0]:
            yield list(path)
        return
    for nxt in range(1, len(free)):
        if nxt not in path and free[path[-1]][nxt]:
            yield from _rings(free, [*path, nxt])
