"""The next step to try on a line, by cubics and parabolas through the values and slopes seen so far.

The choice of Moré and Thuente, "Line Search Algorithms with Guaranteed Sufficient Decrease", ACM TOMS 20 (1994),
section 4: four cases, each with a guess or two, of which one or their midpoint is taken.
"""

import math
from dataclasses import dataclass

__all__ = ["Bracket", "Point", "next_step"]

_REACH = 0.66
"""A trial inside a bracket goes at most this share of the way to its other end."""


@dataclass(frozen=True, slots=True)
class Point:
    """A step along the line, with the function's value and slope there."""

    step: float
    value: float
    slope: float

    def tilted(self, slope: float) -> "Point":
        """Return the point of the function minus a straight line of this slope."""
        return Point(self.step, self.value - self.step * slope, self.slope - slope)


@dataclass(frozen=True, slots=True)
class Bracket:
    """The best point, the other end, and whether a minimiser is known to lie between them."""

    best: Point
    other: Point
    is_closed: bool = False

    @property
    def width(self) -> float:
        return abs(self.other.step - self.best.step)

    def tilted(self, slope: float) -> "Bracket":
        return Bracket(self.best.tilted(slope), self.other.tilted(slope), self.is_closed)

    def narrowed(self, trial: Point) -> "Bracket":
        """Return the bracket given the function at `trial`."""
        if trial.value > self.best.value:
            return Bracket(self.best, trial, True)
        if _is_beyond(self.best, trial):
            return Bracket(trial, self.best, True)
        return Bracket(trial, self.other, self.is_closed)


def next_step(bracket: Bracket, trial: Point, *, low: float, high: float) -> float:
    """Return the step to try after `trial`; `low` and `high` bound it while nothing is bracketed."""
    best = bracket.best
    if trial.value > best.value:
        return _between(best, trial)
    if _is_beyond(best, trial):
        return _further_from_trial(_cubic(trial, best), _parabola(trial, best), trial)
    if abs(trial.slope) < abs(best.slope):
        return _onward(bracket, trial, low=low, high=high)
    if bracket.is_closed:
        return _cubic(trial, bracket.other)
    return high if trial.step > best.step else low


def _is_beyond(best: Point, trial: Point) -> bool:
    """Return whether the slope changes sign between the two, so that a minimiser lies between them."""
    return trial.slope * math.copysign(1.0, best.slope) < 0


def _between(best: Point, trial: Point) -> float:
    """Choose if the trial is higher: the cubic's minimiser if nearer to the best than the parabola's, else halfway."""
    cubic = _cubic(best, trial)
    run = trial.step - best.step
    secant = (best.value - trial.value) / run
    parabola = best.step + best.slope / (secant + best.slope) / 2 * run
    if abs(cubic - best.step) < abs(parabola - best.step):
        return cubic
    return cubic + (parabola - cubic) / 2


def _onward(bracket: Bracket, trial: Point, *, low: float, high: float) -> float:
    """Choose if the trial is lower and flatter: the minimiser seems ahead, but the cubic may have none there."""
    best = bracket.best
    ahead = trial.step > best.step
    cubic = high if ahead else low
    ratio, root = _cubic_ratio(trial, best)
    if ratio < 0 and root != 0:
        cubic = trial.step + ratio * (best.step - trial.step)
    parabola = _parabola(trial, best)
    if not bracket.is_closed:
        return min(max(_further_from_trial(cubic, parabola, trial), low), high)
    nearer = cubic if abs(cubic - trial.step) < abs(parabola - trial.step) else parabola
    limit = trial.step + _REACH * (bracket.other.step - trial.step)
    return min(limit, nearer) if ahead else max(limit, nearer)


def _further_from_trial(cubic: float, parabola: float, trial: Point) -> float:
    return cubic if abs(cubic - trial.step) > abs(parabola - trial.step) else parabola


def _parabola(start: Point, end: Point) -> float:
    """Return where the straight line through the two slopes is zero."""
    return start.step + start.slope / (start.slope - end.slope) * (end.step - start.step)


def _cubic(start: Point, end: Point) -> float:
    """Return the minimiser of the cubic through both values and slopes."""
    return start.step + _cubic_ratio(start, end)[0] * (end.step - start.step)


def _cubic_ratio(start: Point, end: Point) -> tuple[float, float]:
    """Return the cubic's minimiser as a share of the way to `end`, and the root in its formula (0: none).

    With θ = 3 (f₀ − f₁) / (t₁ − t₀) + d₀ + d₁ and γ = ±√(θ² − d₀ d₁), the share is (γ − d₀ + θ) / (2γ − d₀ + d₁).
    Everything is divided by the largest of |θ|, |d₀| and |d₁| under the root, so that no square overflows.
    """
    theta = 3 * (start.value - end.value) / (end.step - start.step) + start.slope + end.slope
    size = max(abs(theta), abs(start.slope), abs(end.slope))
    radicand = (theta / size) ** 2 - (start.slope / size) * (end.slope / size)
    root = size * math.sqrt(max(0.0, radicand))
    if end.step < start.step:
        root = -root
    below = root - start.slope + root + end.slope
    return ((root - start.slope + theta) / below if below != 0 else 0.0), root
