"""Scores: predictions beside measurements, and by how much they miss."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandtable.errors import ValidationSetError
from sandtable.validation.prediction import Prediction
from sandtable.validation.quantities import Quantity, quantity
from sandtable.validation.rows import Row, RowSet

__all__ = ["Outcome", "Score", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row, predicted and measured."""

    row: Row
    predicted: float
    measured: float
    prediction: Prediction

    @property
    def error_pct(self) -> float:
        """Above zero: the prediction is too high."""
        return 100.0 * (self.predicted / self.measured - 1.0)

    @property
    def counts(self) -> bool:
        """Rows that were calibrated on do not."""
        return self.row.use == "predict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """All rows of one figure."""

    name: str
    quantity: str
    source: str
    limit_pct: float | None
    outcomes: tuple[Outcome, ...]
    missing: tuple[str, ...] = ()
    """Rows that could not be predicted, or were not asked for."""

    @property
    def errors_pct(self) -> list[float]:
        """Absolute errors of the rows that count."""
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
        """The mean error with its sign."""
        signed = [outcome.error_pct for outcome in self.outcomes if outcome.counts]
        return statistics.fmean(signed) if signed else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
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
                    "id": each.row.id,
                    "use": each.row.use,
                    "predicted": each.predicted,
                    "measured": each.measured,
                    "error_pct": _rounded(each.error_pct),
                    "breakdown_ns": each.prediction.breakdown_ns,
                }
                for each in self.outcomes
            ],
        }


def score(row_set: RowSet, name: str, predictions: Mapping[str, Prediction]) -> Score:
    """One of a set's scores; `predictions` are by row id, and need not be complete."""
    table = row_set.scores[name]
    measure = quantity(table.quantity)
    rows = row_set.select(name)
    bases = {row.id: _base(row_set, row, table.relative_to, predictions, measure) for row in rows}
    outcomes = tuple(
        Outcome(
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


def _base(
    row_set: RowSet, row: Row, relative_to: str | None, predictions: Mapping[str, Prediction], measure: Quantity
) -> float:
    """One per cent of what `row` is counted from; 1 if it stands for itself, 0 if its reference has no prediction."""
    if relative_to is None:
        return 1.0
    try:
        wanted = relative_to.format(**row.settings)
    except KeyError as error:
        raise ValidationSetError(
            f"relative_to must name settings of row {row.id}, but it has no {error}; correct '{relative_to}'"
        ) from None
    found = [each for each in row_set.rows if each.id == wanted]
    if not found:
        raise ValidationSetError(f"relative_to must name a row of the same file, but there is no '{wanted}'")
    return measure(predictions[wanted], found[0]) / 100.0 if wanted in predictions else 0.0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
