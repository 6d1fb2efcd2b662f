"""Scores: predictions compared with measurements, row by row, and the picks they lead to.

A `Contest` asks the question of a search: of several ways to split one model over the same GPUs, is the one predicted
to be best also measured as best?
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from sandtable.errors import ValidationSetError
from sandtable.validation.quantities import Prediction, quantity
from sandtable.validation.rows import PublishedRow, RowSet

__all__ = ["Contest", "RowOutcome", "Score", "ValidationReport", "contests", "score"]

GOOD_REGRET_PCT = 2.0
"""A pick that is at most this much slower than the best counts as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """One row, predicted and measured."""

    row: PublishedRow
    predicted: float
    measured: float
    prediction: Prediction

    @property
    def error_pct(self) -> float:
        """Return the relative error; above zero the prediction is too high."""
        return 100.0 * (self.predicted / self.measured - 1.0)

    @property
    def counts(self) -> bool:
        """Return whether the row counts in the error: rows used for calibration do not."""
        return self.row.use == "predict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """All rows of one score."""

    name: str
    quantity: str
    source: str
    limit_pct: float | None
    outcomes: tuple[RowOutcome, ...]
    missing: tuple[str, ...] = ()
    """Rows that failed or were not chosen."""

    @property
    def errors_pct(self) -> list[float]:
        """Return the absolute errors of the rows that count."""
        return [abs(outcome.error_pct) for outcome in self.outcomes if outcome.counts]

    @property
    def mean_abs_pct(self) -> float | None:
        return statistics.fmean(self.errors_pct) if self.errors_pct else None

    @property
    def median_abs_pct(self) -> float | None:
        return statistics.median(self.errors_pct) if self.errors_pct else None

    @property
    def max_abs_pct(self) -> float | None:
        return max(self.errors_pct, default=None)

    @property
    def bias_pct(self) -> float | None:
        """Return the mean error with its sign."""
        signed = [outcome.error_pct for outcome in self.outcomes if outcome.counts]
        return statistics.fmean(signed) if signed else None

    def to_dict(self) -> "ScoreRecord":
        """Return plain data."""
        return {
            "quantity": self.quantity,
            "source": self.source,
            "n": len(self.errors_pct),
            "mean_abs_pct": _rounded(self.mean_abs_pct),
            "median_abs_pct": _rounded(self.median_abs_pct),
            "max_abs_pct": _rounded(self.max_abs_pct),
            "bias_pct": _rounded(self.bias_pct),
            "limit_pct": self.limit_pct,
            "missing": len(self.missing),
            "rows": [
                {
                    "id": outcome.row.id,
                    "use": outcome.row.use,
                    "predicted": outcome.predicted,
                    "measured": outcome.measured,
                    "error_pct": round(outcome.error_pct, 3),
                    "breakdown_ns": outcome.prediction.breakdown_ns,
                }
                for outcome in self.outcomes
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Rows that do the same job in different ways; smaller figures are better."""

    settings: tuple[tuple[str, Any], ...]
    outcomes: tuple[RowOutcome, ...]

    @property
    def pick(self) -> RowOutcome:
        """Return the outcome predicted to be best."""
        return min(self.outcomes, key=lambda outcome: outcome.predicted)

    @property
    def best(self) -> RowOutcome:
        """Return the outcome measured as best."""
        return min(self.outcomes, key=lambda outcome: outcome.measured)

    @property
    def regret_pct(self) -> float:
        """Return how much slower the pick really is than the best."""
        return 100.0 * (self.pick.measured / self.best.measured - 1.0)

    @property
    def is_good(self) -> bool:
        """Return whether the pick is nearly as fast as the best."""
        return self.regret_pct <= GOOD_REGRET_PCT

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            **dict(self.settings),
            "rows": len(self.outcomes),
            "pick": self.pick.row.id,
            "best": self.best.row.id,
            "regret_pct": round(self.regret_pct, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """The result of a validation."""

    scores: tuple[Score, ...]
    contests: dict[str, list[Contest]] = field(default_factory=dict)
    """Keyed by score."""
    failures: dict[str, str] = field(default_factory=dict)
    """Rows that could not be rehearsed, and why."""

    def to_dict(self) -> "ReportRecord":
        """Return plain data, as validation.json holds it."""
        return {
            "sets": {score.name: score.to_dict() for score in self.scores},
            "ranking": {
                name: {
                    "n": len(group),
                    "within_2_pct": sum(contest.is_good for contest in group),
                    "max_regret_pct": round(max(contest.regret_pct for contest in group), 3),
                    "contests": [contest.to_dict() for contest in group],
                }
                for name, group in self.contests.items()
                if group
            },
            "failures": self.failures,
        }


class RowRecord(TypedDict):
    """A row in validation.json."""

    id: str
    use: str
    predicted: float
    measured: float
    error_pct: float
    breakdown_ns: dict[str, int]


class ScoreRecord(TypedDict):
    """A score in validation.json."""

    quantity: str
    source: str
    n: int
    mean_abs_pct: float | None
    median_abs_pct: float | None
    max_abs_pct: float | None
    bias_pct: float | None
    limit_pct: float | None
    missing: int
    rows: list[RowRecord]


class RankingRecord(TypedDict):
    """The contests of a score in validation.json."""

    n: int
    within_2_pct: int
    max_regret_pct: float
    contests: list[dict[str, Any]]


class ReportRecord(TypedDict):
    """The content of validation.json."""

    sets: dict[str, ScoreRecord]
    ranking: dict[str, RankingRecord]
    failures: dict[str, str]


def score(row_set: RowSet, name: str, predictions: Mapping[str, Prediction]) -> Score:
    """Score a set under one of its names. `predictions` are keyed by row id and may be incomplete."""
    table = row_set.scores[name]
    measure = quantity(table.quantity)
    rows = row_set.select(name)
    bases = {row.id: _base(row_set, row, name, predictions) for row in rows}
    outcomes = tuple(
        RowOutcome(
            row=row,
            predicted=measure(predictions[row.id], row) / base,
            measured=row.measured[name],
            prediction=predictions[row.id],
        )
        for row in rows
        if row.id in predictions and (base := bases[row.id])
    )
    return Score(
        name=name,
        quantity=table.quantity,
        source=row_set.source,
        limit_pct=table.limit_pct,
        outcomes=outcomes,
        missing=tuple(row.id for row in rows if row.id not in predictions or not bases[row.id]),
    )


def contests(score: Score, within: Iterable[str]) -> list[Contest]:
    """Group a score's rows by the settings `within`, and return the groups of at least two."""
    names = tuple(within)
    groups: dict[tuple[Any, ...], list[RowOutcome]] = defaultdict(list)
    for outcome in score.outcomes:
        groups[tuple(outcome.row.settings.get(name) for name in names)].append(outcome)
    return [
        Contest(settings=tuple(zip(names, values, strict=True)), outcomes=tuple(outcomes))
        for values, outcomes in groups.items()
        if names and len(outcomes) > 1
    ]


def _base(row_set: RowSet, row: PublishedRow, score_name: str, predictions: Mapping[str, Prediction]) -> float:
    """Return 1 for an absolute figure, else 1 % of the reference row's; 0 if the reference has no prediction."""
    relative_to = row_set.scores[score_name].relative_to
    if relative_to is None:
        return 1.0
    try:
        wanted = relative_to.format(**row.settings)
    except KeyError as error:
        raise ValidationSetError(
            f"relative_to must name settings of row {row.id}, but it has no {error}; correct '{relative_to}'"
        ) from None
    references = [candidate for candidate in row_set.rows if candidate.id == wanted]
    if not references:
        raise ValidationSetError(f"relative_to must name a row of the same file, but there is no '{wanted}'")
    measure = quantity(row_set.scores[score_name].quantity)
    return measure(predictions[wanted], references[0]) / 100.0 if wanted in predictions else 0.0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
