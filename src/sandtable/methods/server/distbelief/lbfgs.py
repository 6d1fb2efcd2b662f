"""L-BFGS on a sharded vector space: it knows names of vectors and a few sums, but none of the numbers.

    weights         where the loss is evaluated, and finally the result
    gradient        the result of an evaluation
    direction       −H g, by the two-loop recursion
    origin, gradient-before      weights and gradient at the beginning of a line search
    s0 … sm, y0 … ym             the history

Liu and Nocedal, "On the Limited Memory BFGS Method for Large Scale Optimization", 1989. The decisions are those of
L-BFGS-B (Zhu, Byrd, Lu, Nocedal 1997) without bounds, so that their iterates can be compared: the first trial is one
unit away, a pair without curvature is left out, and a failed search starts again without the history.
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sandtable.errors import MethodError
from sandtable.methods.server.distbelief.history import LBFGSHistory
from sandtable.methods.server.distbelief.line_search import LineSearch, Search
from sandtable.methods.server.distbelief.operations import add, copy, dot
from sandtable.methods.server.distbelief.space import VectorSpace

__all__ = ["LBFGS", "Ending", "Progress", "minimize"]


@dataclass(frozen=True, kw_only=True)
class LBFGS:
    """Settings of L-BFGS: when to end, and how many pairs of history to keep.

    It ends after `max_iterations`, when the norm of the gradient is at most `gradient_tolerance`, when an iteration
    lowers the loss by at most `loss_tolerance` of it (of 1, if the loss is smaller), or after the iteration in which it
    has evaluated the loss `max_evaluations` times (None: no limit).
    """

    history: int = 10
    max_iterations: int = 100
    max_evaluations: int | None = None
    gradient_tolerance: float = 1e-6
    loss_tolerance: float = 1e-10
    search: LineSearch = field(default_factory=LineSearch)

    def __post_init__(self) -> None:
        if self.history < 1 or self.max_iterations < 1:
            raise MethodError(
                f"history and max_iterations must be 1 or more, but got ({self.history}, {self.max_iterations}); "
                "10 pairs suit most problems"
            )
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise MethodError(f"max_evaluations must be 1 or more, but got {self.max_evaluations}; None sets no limit")
        if self.gradient_tolerance < 0 or self.loss_tolerance < 0:
            raise MethodError(
                "tolerances must be 0 or more, but got "
                f"({self.gradient_tolerance}, {self.loss_tolerance}); 0 goes on to max_iterations"
            )


class Ending(enum.StrEnum):
    """Why it ended."""

    GRADIENT = "the gradient is within its tolerance"
    LOSS = "the loss no longer falls"
    ITERATIONS = "all iterations are made"
    EVALUATIONS = "all evaluations of the loss are made"
    SEARCH = "no step along the gradient lowers the loss"


@dataclass(slots=True, kw_only=True)
class Progress:
    """Everything between two iterations that is not a vector."""

    loss: float
    gradient_norm: float
    history: LBFGSHistory
    iteration: int = 0
    num_evaluations: int = 1
    ending: Ending | None = None

    def to_notes(self) -> dict[str, Any]:
        """Return numbers and lists, to be saved beside the vectors."""
        return {
            "loss": self.loss,
            "gradient_norm": self.gradient_norm,
            "history": self.history.to_notes(),
            "iteration": self.iteration,
            "num_evaluations": self.num_evaluations,
        }

    @classmethod
    def from_notes(cls, notes: dict[str, Any], settings: LBFGS) -> "Progress":
        return cls(**{**notes, "history": LBFGSHistory.from_notes(settings.history, notes["history"])})


def minimize(
    space: VectorSpace,
    evaluate: Callable[[], float],
    settings: LBFGS,
    *,
    progress: Progress | None = None,
    after: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Minimise the value of `evaluate` at `weights`; it must leave the gradient in `gradient`.

    `after` is called before the first iteration and after each. Given the `progress` of such a call, and the vectors at
    that time, a run resumes as if it had never stopped.
    """
    if progress is None:
        loss = _finite(evaluate(), iteration=0)
        progress = Progress(loss=loss, gradient_norm=_norm(space, "gradient"), history=LBFGSHistory(settings.history))
        after(progress)
    while progress.ending is None:
        if progress.gradient_norm <= settings.gradient_tolerance:
            progress.ending = Ending.GRADIENT
        elif progress.iteration >= settings.max_iterations:
            progress.ending = Ending.ITERATIONS
        elif settings.max_evaluations is not None and progress.num_evaluations >= settings.max_evaluations:
            progress.ending = Ending.EVALUATIONS
        else:
            before = progress.loss
            if _iterate(space, evaluate, settings, progress):
                after(progress)
                fall = before - progress.loss
                if fall <= settings.loss_tolerance * max(abs(before), abs(progress.loss), 1.0):
                    progress.ending = Ending.LOSS
    return progress


def _iterate(space: VectorSpace, evaluate: Callable[[], float], settings: LBFGS, progress: Progress) -> bool:
    """Make one iteration. Return False if it failed: then all is as before, but the history is empty."""
    progress.history.direct(space)
    slope, squared = space.run(
        [
            copy("origin", "weights"),
            copy("gradient-before", "gradient"),
            dot("gradient", "direction"),
            dot("direction", "direction"),
        ]
    )
    first = 1.0 / math.sqrt(squared) if progress.iteration == 0 else 1.0
    loss = None
    if slope < 0:
        search = Search(settings.search, step=first, loss=progress.loss, slope=slope)
        loss = _search(space, evaluate, search, settings.search.max_evaluations, progress)
    if loss is None:
        space.run([copy("weights", "origin"), copy("gradient", "gradient-before")])
        if not progress.history:
            progress.ending = Ending.SEARCH
        progress.history.clear()
        return False
    progress.history.take(space, step=search.step)
    progress.loss, progress.gradient_norm = loss, _norm(space, "gradient")
    progress.iteration += 1
    return True


def _search(
    space: VectorSpace, evaluate: Callable[[], float], search: Search, max_evaluations: int, progress: Progress
) -> float | None:
    """Return the loss where the search ends, with `weights` and `gradient` there; None if it does not end."""
    for _ in range(max_evaluations):
        space.run([copy("weights", "origin"), add("weights", "direction", search.step)])
        loss = _finite(evaluate(), iteration=progress.iteration + 1)
        progress.num_evaluations += 1
        (slope,) = space.run([dot("gradient", "direction")])
        if search.update(loss, slope):
            return loss
    return None


def _norm(space: VectorSpace, name: str) -> float:
    return math.sqrt(space.run([dot(name, name)])[0])


def _finite(loss: float, *, iteration: int) -> float:
    if not math.isfinite(loss):
        raise MethodError(
            f"the loss must be finite, but is {loss} in iteration {iteration}; scale the inputs, add a penalty on the "
            "weights or begin elsewhere"
        )
    return loss
