"""Causes: what most likely went wrong with a gradient, guessed from its ratio and from what other ranks have."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.check.parity.differences import Difference, Measured, clear_names, likeness
from sandtable.check.parity.losses import losses_agree
from sandtable.trace.real_values import RankValues

__all__ = ["Cause", "CauseKind", "find_cause", "ratio_cause"]


Array = npt.NDArray[Any]


class CauseKind(IntEnum):
    """Of several kinds in one run, a lower one explains the others."""

    NO_GRADIENT = 0
    OWN_SAMPLES = 1
    """The gradient of the rank's own samples."""
    PART = 2
    """A part that other ranks' parts complete."""
    RATIO = 3
    """The expected gradient, multiplied."""
    OTHER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A guess. `what` completes "gradient of x ..."; differences of equal causes are reported together."""

    kind: CauseKind
    what: str
    guess: str = ""
    remedy: str = ""
    is_explained: bool = True
    """Whether the sizes of groups explain a ratio."""


def find_cause(difference: Difference, measured: Measured) -> Cause:
    """Return the most likely cause."""
    found = difference.likeness
    if found is None:
        return Cause(
            kind=CauseKind.NO_GRADIENT,
            what="is missing on some ranks",
            guess="is it left out of the graph there, or never reduced?",
            remedy="let every rank that holds the parameter use it, or reduce its gradient from those that do",
        )
    tolerance = max(measured.rtol, 1e-3)
    is_multiple = found.rest <= tolerance and math.isfinite(found.ratio)
    own = _own_samples(difference, measured, tolerance, may_be_scaled=not is_multiple)
    own = own or _own_share(difference, measured, tolerance)
    if own is not None:
        return own
    part = _part(difference, measured, tolerance) or _tied_part(difference, measured, tolerance)
    if part is not None:
        return part
    if is_multiple:
        return ratio_cause(found.ratio, measured)
    return Cause(
        kind=CauseKind.OTHER,
        what="differs from the single-process gradient",
        remedy="look at the exchanges of the forward pass: the loss differs, too"
        if not losses_agree(measured.parallel, measured.replicas, measured.rtol)
        else "the forward pass agrees: look at the backward passes of exchanges, and at reductions that follow",
    )


def _own_samples(difference: Difference, measured: Measured, tolerance: float, *, may_be_scaled: bool) -> Cause | None:
    """Return a cause if the rank has what a single process with the same samples has, perhaps scaled."""
    num_streams = len(measured.plan.streams)
    replica = measured.replica_of(difference.rank)
    if replica is None or num_streams < 2:
        return None
    key = (difference.update, difference.name)
    local = getattr(replica, difference.kind).get(key)
    gradient = getattr(measured.parallel[difference.rank], difference.kind).get(
        (difference.update, difference.own_name)
    )
    if local is None or gradient is None:
        return None
    found = likeness(gradient, difference.slot.read(local.reshape(measured.plan.layout.shapes[difference.name])))
    is_scaled = abs(found.ratio - 1) > tolerance
    if found.rest > tolerance or (is_scaled and not may_be_scaled):
        return None
    return _never_reduced(num_streams, f", times {found.ratio:.3g}" if is_scaled else "")


def _own_share(difference: Difference, measured: Measured, tolerance: float) -> Cause | None:
    """Return a cause if what the data-parallel ranks have adds up to the gradient of one process with all samples."""
    layout, streams = measured.plan.layout, measured.plan.streams
    if measured.plan.fold == 1 or len(streams) < 2:
        return None  # (single processes tell what each stream gives)
    holders = {rank: own for rank, own, slot in layout.holders(difference.name) if slot == difference.slot}
    arrays = []
    for stream in streams:
        rank = next((rank for rank in stream.ranks if rank in holders), None)
        gradients = {} if rank is None else getattr(measured.parallel[rank], difference.kind)
        gradient = None if rank is None else gradients.get((difference.update, holders[rank]))
        if gradient is None:
            return None
        arrays.append(gradient.astype(np.float64))
    expected = getattr(measured.update, difference.kind)[difference.update, difference.name]
    whole = difference.slot.read(expected.reshape(layout.shapes[difference.name]))
    is_equal = all(np.allclose(arrays[0], other, rtol=1e-4, atol=1e-12) for other in arrays[1:])
    totals = (np.sum(arrays, axis=0) / divisor for divisor in (1, len(arrays)))
    if is_equal or all(likeness(total, whole).error > 2 * tolerance for total in totals):
        return None
    return _never_reduced(len(streams))


def _never_reduced(num_streams: int, scale: str = "") -> Cause:
    return Cause(
        kind=CauseKind.OWN_SAMPLES,
        what=f"is that of each rank's own samples{scale}, not the mean over the {num_streams} data-parallel ranks",
        guess="was it never reduced over dp?",
        remedy="average the gradient over the data-parallel group before the optimizer steps",
    )


def _part(difference: Difference, measured: Measured, tolerance: float) -> Cause | None:
    """Return a cause if the ranks of one stream that hold the same parameter have parts that make up the gradient."""
    layout = measured.plan.layout
    expected = getattr(measured.update, difference.kind)[difference.update, difference.name]
    stream = measured.stream_of(difference.rank)
    parts = {
        rank: getattr(measured.parallel[rank], difference.kind).get((difference.update, own))
        for rank, own, slot in layout.holders(difference.name)
        if rank in stream and slot == difference.slot
    }
    present = {rank: part for rank, part in parts.items() if part is not None}
    if len(present) < 2 or len(present) < len(parts):
        return None
    arrays = list(present.values())
    if all(np.allclose(arrays[0], other, rtol=1e-4, atol=1e-12) for other in arrays[1:]):
        return None  # equal: scaled, not in parts
    whole = difference.slot.read(expected.reshape(layout.shapes[difference.name]))
    for divisor, how in ((1, "their sum"), (len(arrays), "their mean")):
        total = np.sum([array.astype(np.float64) for array in arrays], axis=0) / divisor
        found = likeness(total, whole)
        if found.error <= 2 * tolerance:
            return Cause(
                kind=CauseKind.PART,
                what=f"is only a part on ranks that share a copy of the model: {how} is the single-process gradient",
                guess="is a reduction over tp missing?",
                remedy="all-reduce it over the tensor-parallel group: in the backward pass of the layer's input, or "
                "for parameters of sequence-parallel layers before the optimizer steps",
            )
    return None


def _tied_part(difference: Difference, measured: Measured, tolerance: float) -> Cause | None:
    """Return a cause if a parameter of another name that began with the same values has the rest of the gradient."""
    gradients = getattr(measured.parallel[difference.rank], difference.kind)
    own = gradients.get((difference.update, difference.own_name))
    value = measured.parallel[difference.rank].values.get((difference.update, difference.own_name))
    if own is None or value is None:
        return None
    expected = getattr(measured.update, difference.kind)[difference.update, difference.name]
    whole = difference.slot.read(expected.reshape(measured.plan.layout.shapes[difference.name]))
    for rank in measured.stream_of(difference.rank):
        for name, gradient in _copies_of(value, measured.parallel[rank], difference).items():
            is_other = name not in measured.plan.layout.slots[rank]
            if is_other and likeness(own.astype(np.float64) + gradient, whole).error <= 2 * tolerance:
                return Cause(
                    kind=CauseKind.PART,
                    what=f"is only a part: with that of `{name}`, a copy of the weight on another rank, it is the "
                    "single-process gradient",
                    guess="is a reduction between the stages that share the weight missing?",
                    remedy="all-reduce the gradients of both copies over a group of their ranks before the update",
                )
    return None


def _copies_of(value: Array, values: RankValues, difference: Difference) -> Mapping[str, Array]:
    """Return the gradients of a rank's parameters that hold these numbers before the update."""
    found: dict[str, Array] = {}
    for (update, name), other in values.values.items():
        gradient = getattr(values, difference.kind).get((update, name))
        is_copy = update == difference.update and other.shape == value.shape and np.array_equal(other, value)
        if is_copy and gradient is not None and np.any(value != value.reshape(-1)[0]):
            found[name] = gradient
    return found


def ratio_cause(ratio: float, measured: Measured, alike: Sequence[Difference] = ()) -> Cause:
    """Return the cause of gradients that are `ratio` times the expected ones; `alike` are those that are."""
    names = {one.name for one in alike}
    num_ranks, dp = len(measured.parallel), len(measured.plan.streams)
    model = max(num_ranks // dp, 1)
    guesses = []
    of_copies = [(model, "reduced twice over tp", "divided by tp, too")]
    of_all = [
        (dp, "reduced twice over dp, or never divided by it", "averaged twice over dp"),
        (model, "divided by tp instead of dp*tp", "divided by dp*tp instead of dp"),
        (num_ranks, "summed over all ranks and never divided", "divided by all ranks once too often"),
        (_num_passes(measured), "never divided by the micro-batches", "divided by the micro-batches twice"),
    ]
    are_copies = _are_only_copies(names, measured)
    are_few = bool(alike) and not clear_names(measured, alike[0]) <= names
    for size, summed, divided in of_copies if are_copies else [] if are_few else of_all:
        if size > 1:
            guesses += [summed] if _is_close(ratio, size) else [divided] if _is_close(ratio, 1 / size) else []
    known = {model} if are_copies else set() if are_few else {dp, model, num_ranks}
    groups = {len(group) for values in measured.parallel for group in values.groups}
    for size in sorted(groups - known - {1}):
        if _is_close(ratio, size) or _is_close(ratio, 1 / size):
            guesses.append(f"a group of {size} ranks counted {'once too often' if ratio > 1 else 'as a divisor too'}")
    is_explained = bool(guesses)
    if not guesses and not are_few and 0.5 < ratio < 2:
        guesses.append("clipped by the norm of a part of the model")
    return Cause(
        kind=CauseKind.RATIO,
        what=f"is {_number(ratio)} times the single-process gradient",
        is_explained=is_explained,
        guess=", or ".join(guesses) + "?" if guesses else "",
        remedy=f"the gradient must be the mean over the {dp} data-parallel ranks of what each copy of the model "
        f"computes (dp {dp}, {model} ranks per copy): check the divisor of the loss and every all-reduce on its way",
    )


def _num_passes(measured: Measured) -> int:
    """Return how many backward passes a rank makes per update, if a single process makes fewer."""
    passes = [
        max((count for (update, _), count in run.backwards.items() if not update), default=1)
        for run in (measured.parallel[0], measured.update)
    ]
    return passes[0] if passes[0] > passes[1] else 1


def _are_only_copies(names: Collection[str], measured: Measured) -> bool:
    """Return whether the ranks of one copy of the model hold all of these parameters whole, but not all others."""
    in_parts = {
        name
        for name in measured.plan.layout.shapes
        if len({(slot.start, slot.offset, slot.positions) for _, _, slot in measured.plan.layout.holders(name)}) > 1
    }
    return bool(in_parts) and in_parts.isdisjoint(names)


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 0.02 * abs(other)


def _number(ratio: float) -> str:
    if 0 < abs(ratio - 1) < 0.05:
        return f"{ratio:.4g}"
    return f"{ratio:.1f}" if abs(ratio * 10 - round(ratio * 10)) < 0.02 and abs(ratio) >= 0.1 else f"{ratio:.3g}"
