"""Objectives: what makes one configuration better than another. One class per objective, all of them minimised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from sandtable.errors import PlanError
from sandtable.planner.trial import Trial, TrialFigures
from sandtable.units import format_count, format_seconds

__all__ = ["OBJECTIVES", "Objective", "pareto_front", "parse_objective"]


class Objective(ABC):
    """A figure to minimise."""

    name: ClassVar[str]
    needs: ClassVar[str] = ""
    """The option without which there is no such figure."""

    @abstractmethod
    def value(self, figures: TrialFigures) -> float | None:
        """Return the figure, smaller if better, or None if it is not known."""

    @abstractmethod
    def describe(self, value: float) -> str:
        """Return the figure as a person reads it."""

    def require(self, figures: TrialFigures) -> float:
        """Return the figure. Raises PlanError with the option that makes it known."""
        value = self.value(figures)
        if value is None:
            raise PlanError(f"the objective {self.name} needs {self.needs}, which was not given; add it")
        return value


class StepTime(Objective):
    """Seconds per step: right where every configuration does the same work in a step."""

    name = "time"

    def value(self, figures: TrialFigures) -> float:
        return figures.step_seconds

    def describe(self, value: float) -> str:
        return f"{format_seconds(value)} per step"


class TokenRate(Objective):
    """Tokens per second and GPU, negative because more is better."""

    name = "throughput"
    needs = "--tokens-per-step"

    def value(self, figures: TrialFigures) -> float | None:
        rate = figures.tokens_per_s_per_gpu
        return None if rate is None else -rate

    def describe(self, value: float) -> str:
        return f"{format_count(round(-value))} tokens/s per GPU"


class DollarCost(Objective):
    """Dollars per step, or per million tokens where the tokens of a step are known."""

    name = "cost"
    needs = "a price: --usd-per-gpu-hour, or a cluster with one"

    def value(self, figures: TrialFigures) -> float | None:
        if figures.usd_per_step is None or figures.tokens_per_step is None:
            return figures.usd_per_step
        return figures.usd_per_step / figures.tokens_per_step * 1e6

    def describe(self, value: float) -> str:
        return f"${value:.4g}"


class Memory(Objective):
    """The share of the fullest card that is reserved."""

    name = "memory"

    def value(self, figures: TrialFigures) -> float:
        return figures.memory_share

    def describe(self, value: float) -> str:
        return f"{100 * value:.0f}% of the card"


class NumGPUs(Objective):
    """The number of GPUs."""

    name = "gpus"

    def value(self, figures: TrialFigures) -> float:
        return figures.num_gpus

    def describe(self, value: float) -> str:
        return f"{format_count(int(value))} GPUs"


OBJECTIVES: dict[str, Objective] = {
    objective.name: objective for objective in (StepTime(), TokenRate(), DollarCost(), Memory(), NumGPUs())
}


def parse_objective(name: str) -> Objective:
    """Return the objective of this name."""
    if name not in OBJECTIVES:
        raise PlanError(f"an objective must be one of {', '.join(OBJECTIVES)}, but got '{name}'; choose one of these")
    return OBJECTIVES[name]


def pareto_front(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    """Return the trials that no other one beats in one objective without losing in another."""
    points = [(trial, tuple(objective.require(trial.figures) for objective in objectives)) for trial in trials]
    return [trial for trial, point in points if not any(_beats(other, point) for _, other in points)]


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(left <= right for left, right in zip(one, other, strict=True))
