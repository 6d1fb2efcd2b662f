"""Times: where a step goes, on selected ranks and on average."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandtable.engine.breakdown import Breakdown
from sandtable.engine.timeline import Actor, Timeline
from sandtable.units import NS_PER_S

__all__ = ["PARTS", "Parts", "RankTimes", "TimeBreakdown", "break_down", "parts_of"]

PARTS = ("forward", "backward", "recompute", "optimizer", "communication", "bubble", "straggler", "host", "input")
"""The parts of a step in drawing order; `other` follows as the last."""

_OWN_WORK = ("forward", "backward", "recompute", "optimizer", "host", "input", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of one step, which add up to it. `communication` is the exposed part, by axis."""

    forward: float
    backward: float
    recompute: float
    optimizer: float
    communication: dict[str, float]
    bubble: float
    """Waiting for a pipeline neighbour."""
    straggler: float
    """Waiting for the last member of a collective."""
    host: float
    """The device is idle because the host has issued nothing."""
    input: float
    """Waiting for data to be copied to the device."""
    other: float

    @property
    def total(self) -> float:
        rest = sum(getattr(self, name) for name in PARTS if name != "communication")
        return float(rest + sum(self.communication.values()) + self.other)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """The parts of a rank's step, and how many ranks share them. `rank` is None for a mean."""

    rank: int | None
    num_ranks: int
    parts: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Where the step goes on the slowest rank (least waiting for others), the median rank, rank 0, and on average."""

    slowest: RankTimes
    median: RankTimes
    first: RankTimes
    mean: RankTimes


def break_down(timeline: Timeline) -> TimeBreakdown:
    """Return where the step goes on selected ranks, and on average."""
    rows = [(actor, parts_of(timeline.breakdown(actor.representative))) for actor in timeline.actors]
    by_work = sorted(rows, key=lambda row: (_own_work(row[1]), -row[0].representative))
    first_actor, first_parts = next(row for row in rows if 0 in row[0].ranks)
    return TimeBreakdown(
        slowest=_times(*by_work[-1]),
        median=_times(*_middle(by_work)),
        first=RankTimes(rank=0, num_ranks=len(first_actor.ranks), parts=first_parts),
        mean=RankTimes(rank=None, num_ranks=sum(len(actor.ranks) for actor, _ in rows), parts=_mean(rows)),
    )


def parts_of(breakdown: Breakdown) -> Parts:
    """Return a breakdown in seconds."""
    seconds = {name: getattr(breakdown, name) / NS_PER_S for name in (*PARTS, "other") if name != "communication"}
    axes: Mapping[str, int] = breakdown.communication
    return Parts(communication={axis: ns / NS_PER_S for axis, ns in sorted(axes.items()) if ns}, **seconds)


def _times(actor: Actor, parts: Parts) -> RankTimes:
    return RankTimes(rank=actor.representative, num_ranks=len(actor.ranks), parts=parts)


def _own_work(parts: Parts) -> float:
    """Return the time that the rank itself needs: others wait for it."""
    return float(sum(getattr(parts, name) for name in _OWN_WORK))


def _middle(rows: Sequence[tuple[Actor, Parts]]) -> tuple[Actor, Parts]:
    half = sum(len(actor.ranks) for actor, _ in rows) / 2
    passed = 0
    for actor, parts in rows:
        passed += len(actor.ranks)
        if passed >= half:
            return actor, parts
    raise AssertionError("half of the ranks are before the end")


def _mean(rows: Sequence[tuple[Actor, Parts]]) -> Parts:
    num_ranks = sum(len(actor.ranks) for actor, _ in rows)
    axes = sorted({axis for _, parts in rows for axis in parts.communication})

    def mean(of: str, axis: str | None = None) -> float:
        values = ((len(a.ranks), getattr(p, of) if axis is None else p.communication.get(axis, 0.0)) for a, p in rows)
        return float(sum(number * value for number, value in values) / num_ranks)

    return Parts(
        communication={axis: mean("communication", axis) for axis in axes},
        **{name: mean(name) for name in (*PARTS, "other") if name != "communication"},
    )
