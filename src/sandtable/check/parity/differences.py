"""Differences: each parameter's gradient, and its change, on every rank against what a single process computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.check.parity.plan import ReferencePlan
from sandtable.check.parity.slots import Slot
from sandtable.trace.real_values import RankValues

__all__ = [
    "Difference",
    "Likeness",
    "Measured",
    "clear_names",
    "compare_changes",
    "compare_gradients",
    "likeness",
]

Array = npt.NDArray[Any]

_SAME = 0.01
"""Ratios that are as close are one."""

_NEGLIGIBLE = 1e-5
"""Gradients smaller than this, per element and against the largest of all parameters, are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How an array compares with the expected one: it is `ratio` times that, but for the share `rest` of its norm."""

    ratio: float
    rest: float
    error: float
    """The norm of the difference, against that of the expected one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What all runs have computed. `replicas[n]` took the streams of the plan's n-th guide."""

    parallel: tuple[RankValues, ...]
    replicas: tuple[RankValues, ...]
    update: RankValues
    plan: ReferencePlan
    rtol: float
    drawn: tuple[RankValues, ...] = ()
    """The ranks as they drew masks, if they were compared without."""

    def replica_of(self, rank: int) -> RankValues | None:
        """Return the single process that read what this rank did, and nothing else."""
        if self.plan.fold > 1:
            return None
        for stream, replica in zip(self.plan.streams, self.replicas, strict=False):
            if rank in stream.ranks:
                return replica
        return None

    def stream_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that read what this one did."""
        return next((stream.ranks for stream in self.plan.streams if rank in stream.ranks), (rank,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One parameter on one rank that is not as expected, at its first such update."""

    name: str
    own_name: str
    rank: int
    update: int
    likeness: Likeness | None
    """None where the rank has no gradient at all."""
    norm: float
    expected_norm: float
    slot: Slot
    kind: str = "gradients"
    """Which gradients differ, as a field of RankValues."""


def compare_gradients(measured: Measured) -> list[Difference]:
    """Return the gradients that differ from the single process's at the first update at which any does.

    After that, replicas whose updates differed are no longer equal, and no single process could be.
    """
    for update in range(measured.plan.num_updates):
        unclipped = _compare(measured, update, "unclipped_gradients")
        stepped = _compare(measured, update, "gradients")
        if unclipped and _is_one_factor(unclipped):
            return unclipped  # clipping hides a factor that all gradients have
        if stepped:
            return stepped
    return []


def _is_one_factor(differences: Sequence[Difference]) -> bool:
    found = [one.likeness for one in differences]
    ratios = [one.ratio for one in found if one is not None and one.rest < _SAME]
    return len(ratios) == len(found) and max(ratios) - min(ratios) <= _SAME * abs(max(ratios))


def _compare(measured: Measured, update: int, kind: str) -> list[Difference]:
    """Return the gradients of one kind that differ at one update."""
    found: dict[tuple[str, int], Difference] = {}
    wanted = getattr(measured.update, kind)
    floor = _floor(wanted, update)
    for name in measured.plan.layout.shapes:
        expected = wanted.get((update, name))
        for rank, own, slot in measured.plan.layout.holders(name) if expected is not None else ():
            piece, gradients = measured.plan.layout.pieces[rank][own], getattr(measured.parallel[rank], kind)
            if gradients and piece.is_held and not piece.has_partial_gradient:
                part = slot.read(_whole(expected, measured.plan.layout.shapes[name]))
                gradient = gradients.get((update, own))
                difference = _difference(gradient, part, floor, measured.rtol)
                if difference is not None and part.size:
                    found[name, rank] = Difference(
                        name=name,
                        own_name=own,
                        rank=rank,
                        update=update,
                        likeness=difference[0],
                        norm=0.0 if gradient is None else float(np.linalg.norm(gradient)),
                        expected_norm=float(np.linalg.norm(part)),
                        slot=slot,
                        kind=kind,
                    )
    return list(found.values())


def compare_changes(measured: Measured) -> Iterator[Difference]:
    """Yield the parameters that an update changes otherwise than in a single process, though their gradients agree."""
    layout = measured.plan.layout
    clear: dict[str, npt.NDArray[np.bool_]] = {}
    for update in range(measured.plan.num_updates):
        floor = _floor(measured.update.gradients, update)
        for name, shape in layout.shapes.items():
            gradient = measured.update.gradients.get((update, name))
            before = measured.plan.guides[0].values.get((update, name))
            after = measured.update.values.get((update + 1, name))
            if gradient is None or before is None or after is None:
                continue
            large = np.abs(gradient.reshape(shape)) > max(100 * floor, 10 * measured.rtol * _rms(gradient))
            clear[name] = clear.get(name, large) & large  # Adam makes as much of noise as of a gradient
            for rank, own, slot in layout.holders(name):
                values = measured.parallel[rank].values
                if (update, own) in values and (update + 1, own) in values:
                    mask, expected = slot.read(clear[name]), slot.read(_whole(after, shape) - before)
                    change = (values[update + 1, own] - values[update, own]).reshape(expected.shape)
                    yield from _change(change * mask, expected * mask, (name, own, rank, update, slot), measured.rtol)


def _change(
    change: Array, expected: Array, place: tuple[str, str, int, int, Slot], rtol: float
) -> Iterator[Difference]:
    name, own, rank, update, slot = place
    norm, expected_norm = float(np.linalg.norm(change)), float(np.linalg.norm(expected))
    found = likeness(change, expected)
    if expected_norm > 0 and found.error > max(10 * rtol, 0.1):
        yield Difference(
            name=name,
            own_name=own,
            rank=rank,
            update=update,
            likeness=found,
            norm=norm,
            expected_norm=expected_norm,
            slot=slot,
        )


def clear_names(measured: Measured, difference: Difference) -> set[str]:
    """Return the parameters whose gradients are no noise at the update of this difference."""
    wanted = getattr(measured.update, difference.kind)
    floor = 100 * _floor(wanted, difference.update)
    return {name for (update, name), array in wanted.items() if update == difference.update and _rms(array) > floor}


def likeness(array: Array, expected: Array) -> Likeness:
    """Compare two arrays of equal size."""
    one, other = array.reshape(-1).astype(np.float64), expected.reshape(-1).astype(np.float64)
    norm, wanted = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    if wanted == 0 or norm == 0:
        return Likeness(ratio=0.0 if norm == 0 else float("inf"), rest=0.0, error=0.0 if norm == wanted else 1.0)
    ratio = float(one @ other) / wanted**2
    return Likeness(
        ratio=ratio,
        rest=float(np.linalg.norm(one - ratio * other)) / norm,
        error=float(np.linalg.norm(one - other)) / wanted,
    )


def _difference(gradient: Array | None, expected: Array, floor: float, rtol: float) -> tuple[Likeness | None] | None:
    """Return the likeness of gradients that differ; None if they agree."""
    if gradient is None:
        return None if _rms(expected) <= floor else (None,)
    if gradient.size != expected.size:
        return None
    gradient = gradient.reshape(expected.shape)
    if _rms(gradient - expected) <= floor:
        return None
    found = likeness(gradient, expected)
    return (found,) if found.error > rtol or not np.isfinite(found.error) else None


def _floor(gradients: Mapping[tuple[int, str], Array], update: int) -> float:
    return _NEGLIGIBLE * max((_rms(array) for (number, _), array in gradients.items() if number == update), default=0.0)


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def _whole(array: Array, shape: Sequence[int]) -> Array:
    return array.reshape(tuple(shape))
