"""Which ranks a report shows: a page can draw a dozen ranks, not thousands."""

from collections.abc import Iterable, Sequence

import numpy as np

from sandtable.engine.timeline import Timeline
from sandtable.errors import ReportError
from sandtable.trace import P2P_OPS, RankView

__all__ = ["choose_ranks"]

MAX_RANKS = 16


def choose_ranks(timeline: Timeline, *, slowest: int | None = None, wanted: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the ranks to show.

    These are the `wanted` ones; or else the first, the slowest, one of each pipeline stage and the last, no two
    with equal times.
    """
    trace = timeline.trace
    if wanted:
        _check(wanted, trace.world_size)
        return tuple(dict.fromkeys(wanted))
    kept = _distinct((0, slowest or 0, trace.world_size - 1), timeline)
    room = MAX_RANKS - len(kept)
    others = [rank for rank in _distinct((*kept, *_stages(trace.rank(0))), timeline) if rank not in kept]
    return tuple(sorted(kept + _spread(others, room)))


def _check(wanted: Iterable[int], world_size: int) -> None:
    for rank in wanted:
        if not 0 <= rank < world_size:
            raise ReportError(
                f"ranks to draw must be between 0 and {world_size - 1}, but got {rank}; choose ranks of this run"
            )


def _stages(view: RankView) -> tuple[int, ...]:
    """Return one rank of each pipeline stage: the largest group in which this rank sends and receives."""
    names = view.rank_class.records.call_ops
    is_p2p = np.array([name in P2P_OPS for name in names] or [False])
    groups = np.unique(view.calls.group[is_p2p[view.calls.op]])
    rings = [view.group(int(index)).ranks for index in groups]
    return max(rings, key=len, default=())


def _distinct(ranks: Iterable[int], timeline: Timeline) -> list[int]:
    """Leave out ranks whose times equal those of a rank before them."""
    seen: dict[int, int] = {}
    for rank in ranks:
        seen.setdefault(timeline.actor_of(rank).representative, rank)
    return list(seen.values())


def _spread(ranks: list[int], room: int) -> list[int]:
    if len(ranks) <= room:
        return ranks
    return [ranks[int(index)] for index in np.linspace(0, len(ranks) - 1, room)]
