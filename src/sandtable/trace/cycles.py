"""Cycles: ranks that wait for each other in a circle."""

from collections.abc import Mapping, Sequence

__all__ = ["find_cycle"]


def find_cycle(waits_for: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the ranks of one circle, each of which waits for the next; none if there is no circle."""
    done: set[int] = set()
    for start in waits_for:
        path: list[int] = []
        stack = [(start, 0)]
        while stack:
            rank, depth = stack.pop()
            del path[depth:]
            if rank in path:
                return path[path.index(rank) :]
            if rank in done or rank not in waits_for:
                continue
            done.add(rank)
            path.append(rank)
            stack.extend((other, depth + 1) for other in reversed(waits_for[rank]))
    return []
