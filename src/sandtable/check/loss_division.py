"""Division of losses: gradients of micro-batches are added, so each loss must be divided by their number, and once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose, isfinite

from sandtable.check.relations import facts_of
from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, ScriptEvent, Trace

__all__ = ["accumulation_not_averaged", "divided_for_each_micro_batch_twice"]

_KINDS = (EventKind.BACKWARD, EventKind.SCALE, EventKind.ZERO_GRAD, EventKind.OPTIMIZER_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The backward passes of the micro-batches of one update, all from one line of the script."""

    passes: tuple[ScriptEvent, ...]
    factor: float
    """What each loss was multiplied by, without the scale of a GradScaler."""
    update: ScriptEvent


def accumulation_not_averaged(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report means over micro-batches that are added up and divided by nothing."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        windows = _windows(observed)
        if not windows or any(window.factor != 1 for window in windows):
            return
        count = len(windows[0].passes)
        if not _divides_by(observed, count) and _are_only_averaged_over_ranks(observed):
            yield _sightings(windows[0], "whose losses are not divided")

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="accumulation-not-averaged",
            severity=Severity.WARNING,
            message="the losses of the micro-batches of an update are means, so their gradients must be divided by the "
            "number of micro-batches, but they are only added up: each update is that many times as large",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="divide each loss by the number of micro-batches before loss.backward()",
        )


def divided_for_each_micro_batch_twice(trace: Trace) -> Iterator[Finding]:
    """Yield a finding where each loss is divided by the number of micro-batches twice, as by a script and a library."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        windows = _windows(observed)
        if not windows:
            return
        count = len(windows[0].passes)
        numbers = {number for number in observed.loss_factors if number not in (0, 1)}
        is_divided = all(isclose(window.factor * count**2, 1, rel_tol=1e-4) for window in windows)
        # (a loss may have a weight of its own, which happens to be 1/2, too)
        is_clear = sum(any(isclose(number, one) for number in numbers) for one in (count, 1 / count)) == 1
        if is_divided and is_clear:
            yield _sightings(windows[0], f"whose losses are divided by {count**2}")

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="averaged-twice",
            severity=Severity.WARNING,
            message="losses of micro-batches must be divided by their number once, but here each is divided twice",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="leave the division to one: Accelerate, DeepSpeed and Lightning divide the loss by the number of "
            "accumulation steps in their backward()",
        )


def _sightings(window: _Window, text: str) -> tuple[Sighting, ...]:
    begin = window.passes[0]
    return (
        Sighting(text=f"runs {len(window.passes)} backward passes per update, {text}", place=begin.place),
        Sighting(text="updates with the sum", place=window.update.place),
    )


def _windows(observed: Observations) -> list[_Window]:
    """Return the passes of each update, if all updates have equally many, each of a mean over samples of its own."""
    windows: list[_Window] = []
    passes: list[ScriptEvent] = []
    factors: list[float] = []
    scale = 1.0
    for event in observed.of_kind(*_KINDS):
        match event.kind:
            case EventKind.SCALE:
                scale = event.facts["factor"]
            case EventKind.BACKWARD:
                if not event.facts.get("is_mean") or not isfinite(event.facts["factor"]):
                    return []
                passes.append(event)
                factors.append(event.facts["factor"] / scale)
                scale = 1.0
            case EventKind.ZERO_GRAD:
                passes, factors = [], []
            case EventKind.OPTIMIZER_STEP if passes:
                if len({one.place for one in passes}) != 1 or not all(isclose(one, factors[0]) for one in factors):
                    return []
                windows.append(_Window(passes=tuple(passes), factor=factors[0], update=event))
                passes, factors = [], []
    counts = {len(window.passes) for window in windows}
    is_regular = len(windows) > 1 and len(counts) == 1 and counts != {1}
    return windows if is_regular and all(_have_own_samples(observed, window.passes) for window in windows) else []


def _have_own_samples(observed: Observations, passes: Sequence[ScriptEvent]) -> bool:
    """Return whether new samples, or another forward pass through a wrapper, come before each pass but the first."""
    rows = [copy.row for copy in observed.host_copies]
    rows += [draw.row for draw in observed.draws]
    rows += [event.row for event in observed.of_kind(EventKind.FORWARD)]
    return all(any(one.row <= row <= other.row for row in rows) for one, other in pairwise(passes))


def _divides_by(observed: Observations, count: int) -> bool:
    """Return whether some loss is multiplied or divided by a multiple of the number of micro-batches."""
    numbers = {abs(number) for number in observed.loss_factors if number}
    return any(
        isclose(ratio, round(ratio), rel_tol=1e-6) and round(ratio) > 0
        for number in numbers
        if number != 1
        for ratio in (number / count, 1 / (number * count))
    )


def _are_only_averaged_over_ranks(observed: Observations) -> bool:
    """Return whether gradients were multiplied by nothing but what makes means over ranks of their sums."""
    scales = [scale for scale in observed.scales if scale.of == "gradients" and isfinite(scale.factor) and scale.factor]
    return (
        bool(scales)
        and all(any(isclose(scale.factor * size, 1, rel_tol=1e-4) for size in _sizes(scale.groups)) for scale in scales)
        and not facts_of(observed).activation_calls
    )


def _sizes(groups: Sequence[tuple[int, ...]]) -> Iterator[int]:
    """Yield 1 and the numbers of ranks over which sums may have been averaged."""
    size = 1
    yield size
    for group in groups:
        size *= len(group)
        yield size
