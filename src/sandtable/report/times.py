"""Times: where a step goes, for the ranks worth looking at and on average."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sandtable.report.needs import Actor, Breakdown, Timeline
from sandtable.units import NS_PER_S

__all__ = ["PARTS", "Parts", "RankTimes", "break_down", "parts_of"]

PARTS = ("forward", "backward", "recompute", "optimizer", "communication", "bubble", "straggler", "host", "input")
"""What a step is made of, in the order in which it is drawn; `other` closes the list."""

_OWN_WORK = ("forward", "backward", "recompute", "optimizer", "host", "input", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of one step; everything together is the step. `communication` is what no compute hides, by axis."""

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
    """The device is idle because the host has not issued anything."""
    input: float
    """Waiting for data to be copied to the device."""
    other: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def total(self) -> float:
        rest = sum(getattr(self, name) for name in PARTS if name != "communication")
        return float(rest + sum(self.communication.values()) + self.other)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """The parts of a rank's step, and of how many ranks they are true. `rank` is None for a mean."""

    rank: int | None
    num_ranks: int
    parts: Parts


def break_down(timeline: Timeline) -> dict[str, RankTimes]:
    """The slowest rank (most time not spent waiting for others), the median and the first one, and the mean of all."""
    rows = [(actor, parts_of(timeline.breakdown(actor.representative))) for actor in timeline.actors]
    if not rows:
        return {}
    by_work = sorted(rows, key=lambda row: (_own_work(row[1]), -row[0].representative))
    first = next((row for row in rows if 0 in row[0].ranks), rows[0])
    chosen = {"slowest": by_work[-1], "median": _middle(by_work), "first": first}
    found = {
        name: RankTimes(rank=0 if name == "first" else actor.representative, num_ranks=len(actor.ranks), parts=parts)
        for name, (actor, parts) in chosen.items()
    }
    return found | {"mean": RankTimes(rank=None, num_ranks=sum(len(a.ranks) for a, _ in rows), parts=_mean(rows))}


def parts_of(breakdown: Breakdown) -> Parts:
    """The same in seconds."""
    seconds = {name: getattr(breakdown, name) / NS_PER_S for name in (*PARTS, "other") if name != "communication"}
    axes: Mapping[str, int] = breakdown.communication
    return Parts(communication={axis: ns / NS_PER_S for axis, ns in sorted(axes.items()) if ns}, **seconds)


def _own_work(parts: Parts) -> float:
    """Time that the rank itself needs: what others wait for."""
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
