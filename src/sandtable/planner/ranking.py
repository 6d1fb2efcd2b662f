"""The ranking: which configuration to launch, which are as good, and why the others lose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sandtable.planner.objectives import Objective, pareto_front
from sandtable.planner.search_space import Configuration, SearchSpace
from sandtable.planner.trial import Outcome, Trial, TrialState

__all__ = ["TIE_SHARE", "Growth", "Plan"]

TIE_SHARE = 0.02
"""Configurations whose first objective is this close to the best one's are as good, as far as a prediction can tell."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A part of the step that takes longer than with the best configuration."""

    part: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All configurations that were tried, and those that were not with the reason."""

    trials: tuple[Trial, ...]
    objectives: tuple[Objective, ...]
    space: SearchSpace
    excluded: tuple[tuple[Configuration, str], ...] = ()
    """Configurations that do not meet a condition, with the first one that they do not meet."""
    num_untried: int = 0
    max_memory: float = 1.0
    seconds: float = 0.0
    report: str = ""
    """The directory with the full rehearsal of the best configuration."""

    def with_outcome(self, trial: Trial, outcome: Outcome) -> Plan:
        """Return the plan with another outcome of one of its trials."""
        changed = replace(trial, outcome=outcome)
        return replace(self, trials=tuple(changed if one is trial else one for one in self.trials))

    @cached_property
    def ranked(self) -> tuple[Trial, ...]:
        """The configurations that run, the best first."""
        fitting = [trial for trial in self._priced if trial.figures.memory_share <= self.max_memory]
        return tuple(sorted(fitting, key=lambda trial: [one.require(trial.figures) for one in self.objectives]))

    @property
    def best(self) -> Trial | None:
        """The configuration to launch, or None if none runs."""
        return self.ranked[0] if self.ranked else None

    @cached_property
    def ties(self) -> tuple[Trial, ...]:
        """The configurations that a prediction cannot tell from the best one, which comes first."""
        if self.best is None:
            return ()
        first = self.objectives[0]
        best = first.require(self.best.figures)
        return tuple(trial for trial in self.ranked if first.require(trial.figures) - best <= TIE_SHARE * abs(best))

    @cached_property
    def front(self) -> tuple[Trial, ...]:
        """The configurations that none beats in all objectives, the best by the first objective first."""
        return tuple(pareto_front(self.ranked, self.objectives))

    @cached_property
    def rejected(self) -> tuple[Trial, ...]:
        """The configurations that do not run, with the script's reason."""
        return tuple(trial for trial in self.trials if trial.outcome.state is TrialState.REJECTED)

    @cached_property
    def too_large(self) -> tuple[Trial, ...]:
        """The configurations that need more memory than there is, or than they may use, the nearest miss first."""
        above = [trial for trial in self._priced if trial.figures.memory_share > self.max_memory]
        full = [trial for trial in self.trials if trial.outcome.state is TrialState.OUT_OF_MEMORY]
        return tuple(sorted((*above, *full), key=_needed_bytes))

    @cached_property
    def ignored_knobs(self) -> tuple[str, ...]:
        """Knobs without any effect: whatever their value, all figures are the same."""
        return tuple(knob.name for knob in self.space.knobs if self._has_no_effect(knob.name))

    def growth(self, trial: Trial, *, most: int = 2) -> tuple[Growth, ...]:
        """Return the parts of the step that take longer than with the best configuration, the largest first."""
        if self.best is None or trial is self.best:
            return ()
        mine, others = Counter(dict(trial.figures.parts)), Counter(dict(self.best.figures.parts))
        mine.subtract(others)
        grown = [Growth(part, seconds) for part, seconds in mine.most_common(most) if seconds > 0]
        least = 0.1 * (grown[0].seconds if grown else 0)
        return tuple(part for part in grown if part.seconds >= least)

    def work_differs(self) -> bool:
        """Return whether configurations do different amounts of work in a step, so that step times do not compare."""
        work = [trial.figures.model_flops for trial in self.ranked]
        return bool(work) and max(work) > 1.05 * min(work)

    @cached_property
    def _priced(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.outcome.state is TrialState.PRICED)

    def _has_no_effect(self, knob: str) -> bool:
        groups: dict[tuple[Any, ...], list[Trial]] = defaultdict(list)
        for trial in self._priced:
            groups[_others(trial.values, knob)].append(trial)
        compared = [group for group in groups.values() if len(group) > 1]
        return bool(compared) and all(_are_alike(group) for group in compared)


def _needed_bytes(trial: Trial) -> float:
    figures, needed = trial.outcome.figures, trial.outcome.needed_bytes
    if figures is not None:
        return figures.memory_bytes
    return float("inf") if needed is None else needed


def _others(values: Mapping[str, Any], knob: str) -> tuple[Any, ...]:
    return tuple(value for name, value in values.items() if name != knob)


def _are_alike(trials: Sequence[Trial]) -> bool:
    facts = {(trial.figures.step_seconds, trial.figures.memory_bytes, trial.figures.model_flops) for trial in trials}
    return len(facts) == 1
