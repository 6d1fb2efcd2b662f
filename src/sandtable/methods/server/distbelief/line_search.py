"""Line search: how far to go along a direction, so that the loss falls enough and its slope flattens.

The strong Wolfe conditions, with φ(t) the loss at step t:

    φ(t) ≤ φ(0) + c₁ t φ'(0)        it fell by a share of what the slope promised
    |φ'(t)| ≤ c₂ |φ'(0)|            and there is little left to gain along this line

Moré and Thuente, "Line Search Algorithms with Guaranteed Sufficient Decrease", ACM TOMS 20 (1994): a bracket around
such a step is narrowed by interpolation. While no point fell enough, the search works on ψ(t) = φ(t) − c₁ t φ'(0)
instead of φ.
"""

from dataclasses import dataclass

from sandtable.errors import MethodError
from sandtable.methods.server.distbelief.interpolation import Bracket, Point, next_step

__all__ = ["LineSearch", "Search"]

_LEAST_GROWTH, _MOST_GROWTH = 1.1, 4.0
"""While nothing is bracketed the next step lies this many times the last advance further on."""
_SHRINKING = 0.66
"""A bracket that two trials did not shrink below this share is halved."""


@dataclass(frozen=True, kw_only=True)
class LineSearch:
    """`decrease` is c₁ and `curvature` c₂; a bracket narrower than `width` of its upper end is good enough.

    With decrease=1e-3 and the other defaults, it takes the same steps as SciPy's L-BFGS-B.
    """

    decrease: float = 1e-4
    curvature: float = 0.9
    width: float = 0.1
    max_evaluations: int = 20
    max_step: float = 1e10

    def __post_init__(self) -> None:
        if not 0 < self.decrease < self.curvature < 1:
            raise MethodError(
                f"0 < decrease < curvature < 1 must hold, but got (decrease={self.decrease}, "
                f"curvature={self.curvature}); 1e-4 and 0.9 suit most problems"
            )
        if not self.width > 0 or self.max_evaluations < 1 or not self.max_step > 0:
            raise MethodError(
                "width, max_evaluations and max_step must be above 0, but got "
                f"({self.width}, {self.max_evaluations}, {self.max_step}); leave them out for 0.1, 20 and 1e10"
            )


class Search:
    """One search. Evaluate at `step` and pass the result to `update`, until that returns True."""

    def __init__(self, settings: LineSearch, *, step: float, loss: float, slope: float) -> None:
        assert slope < 0 < step <= settings.max_step, (slope, step)
        self._settings = settings
        self._start = Point(0.0, loss, slope)
        self._promised = settings.decrease * slope
        self._bracket = Bracket(self._start, self._start)
        self._widths = settings.max_step, 2 * settings.max_step
        self._low, self._high = 0.0, step + _MOST_GROWTH * step
        self._has_fallen = False
        self.step = step

    def update(self, loss: float, slope: float) -> bool:
        """Take loss and slope at `step`; return whether the search ends there. If not, `step` is the next to try."""
        trial = Point(self.step, loss, slope)
        fell_enough = trial.value <= self._start.value + trial.step * self._promised
        self._has_fallen = self._has_fallen or (fell_enough and trial.slope >= 0)
        if self._is_over(trial, fell_enough):
            return True
        # ψ instead of φ, while nothing has fallen enough and the trial is at least lower than the best.
        tilt = self._promised if not self._has_fallen and not fell_enough and loss <= self._bracket.best.value else 0.0
        self._narrow(trial, tilt)
        return False

    def _is_over(self, trial: Point, fell_enough: bool) -> bool:
        if fell_enough and abs(trial.slope) <= self._settings.curvature * -self._start.slope:
            return True
        if self._bracket.is_closed and (self._is_outside(trial.step) or self._is_narrow):
            return True
        return trial.step == self._settings.max_step and fell_enough and trial.slope <= self._promised

    def _narrow(self, trial: Point, tilt: float) -> None:
        bracket, tilted = self._bracket.tilted(tilt), trial.tilted(tilt)
        step = next_step(bracket, tilted, low=self._low, high=self._high)
        self._bracket = bracket.narrowed(tilted).tilted(-tilt)
        best, other = self._bracket.best.step, self._bracket.other.step
        if self._bracket.is_closed:
            last, before = self._widths
            if self._bracket.width >= _SHRINKING * before:
                step = best + (other - best) / 2
            self._widths = self._bracket.width, last
            self._low, self._high = min(best, other), max(best, other)
        else:
            self._low = step + _LEAST_GROWTH * (step - best)
            self._high = step + _MOST_GROWTH * (step - best)
        step = min(step, self._settings.max_step)
        if self._bracket.is_closed and (self._is_outside(step) or self._is_narrow):
            step = best
        self.step = step

    def _is_outside(self, step: float) -> bool:
        return step <= self._low or step >= self._high

    @property
    def _is_narrow(self) -> bool:
        return self._high - self._low <= self._settings.width * self._high
