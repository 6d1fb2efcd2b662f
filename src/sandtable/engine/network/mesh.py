"""How many rings fit into a node whose GPUs are joined pair by pair, not through a switch.

In a DGX-1 the eight GPUs form a cube with diagonals: a pair has two, one or no NVLinks. A ring over some of the GPUs
can use a link once in each direction, so the rate of a ring all-reduce depends on which GPUs take part. Two of them
may have a sixth of what all eight have.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from sandtable.cluster.node import NodeKind

__all__ = ["pair_share", "ring_share"]

# NVLinks between GPU i and j of a DGX-1, as `nvidia-smi topo -m` prints them; with P100 every double link is single.
_CUBE = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


def ring_share(kind: NodeKind, slots: Sequence[int]) -> float:
    """The share of its port's bandwidth that a GPU can use in rings over `slots`: 1 through a switch."""
    links = _links(kind)
    if links is None or len(slots) < 2:
        return 1.0
    per_gpu = sum(links[0])
    return min(1.0, _num_rings(links, tuple(sorted(slots))) / per_gpu)


def pair_share(kind: NodeKind, src: int, dst: int) -> float:
    """The share of its port's bandwidth that a GPU has towards one other; through a third where no link joins them."""
    links = _links(kind)
    return 1.0 if links is None else max(1, links[src][dst]) / sum(links[0])


def _links(kind: NodeKind) -> tuple[tuple[int, ...], ...] | None:
    """Links between each pair, or None where every GPU reaches every other at the full rate of its port."""
    if kind.scale_up.kind != "nvlink" or kind.num_gpus < 2:
        return None
    if kind.device.vendor == "nvidia" and kind.num_gpus == 8:
        double = kind.device.major >= 7
        return _CUBE if double else tuple(tuple(min(1, count) for count in row) for row in _CUBE)
    return tuple(tuple(int(i != j) for j in range(kind.num_gpus)) for i in range(kind.num_gpus))


@lru_cache(maxsize=256)
def _num_rings(links: tuple[tuple[int, ...], ...], slots: tuple[int, ...]) -> int:
    """Directed rings over `slots` that use each link at most once in each direction.

    Where no ring exists, data passes through GPUs in between, and the GPU with fewest links decides.
    """
    free = [[links[a][b] for b in slots] for a in slots]
    if len(slots) == 2:
        return max(1, free[0][1])
    rings = _most_rings(free)
    return 2 * rings if rings else max(1, min(sum(row) for row in free))


def _most_rings(free: list[list[int]], limit: int = 3) -> int:
    """The most undirected rings that share no link, by trying; `free` is left as it was."""
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
    """Every way to go on from `path` through all others and back to the first."""
    if len(path) == len(free):
        if free[path[-1]][0]:
            yield list(path)
        return
    for nxt in range(1, len(free)):
        if nxt not in path and free[path[-1]][nxt]:
            yield from _rings(free, [*path, nxt])
