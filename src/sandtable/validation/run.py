"""Validate: every row of the chosen sets, rehearsed, and held against what was measured."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sandtable.errors import SandtableError, ValidationSetError
from sandtable.validation.captures import Capture
from sandtable.validation.prediction import Prediction, predict
from sandtable.validation.ranking import Contest, contests
from sandtable.validation.rows import Row, RowSet
from sandtable.validation.scores import Score, score

__all__ = ["Choice", "Report", "choose", "validate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which rows to predict: all, or some.

    `sample` takes that many of the rows of a set that count, always the same ones; rows used for calibration come with
    them. `captured_only` leaves out rows that would have to be captured first.
    """

    sets: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    sample: int | None = None
    captured_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a validation."""

    scores: tuple[Score, ...]
    contests: dict[str, list[Contest]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Rows that could not be rehearsed, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data: `sets` by name of the score, with n, mean_abs_pct, median_abs_pct, max_abs_pct and the rows."""
        return {
            "sets": {each.name: each.to_dict() for each in self.scores},
            "ranking": {
                name: {
                    "n": len(found),
                    "within_2_pct": sum(each.regret_pct <= 2.0 for each in found),
                    "max_regret_pct": round(max(each.regret_pct for each in found), 3),
                    "contests": [each.to_dict() for each in found],
                }
                for name, found in self.contests.items()
                if found
            },
            "failures": self.failures,
        }


def validate(
    sets: Sequence[RowSet],
    choice: Choice,
    *,
    cache: Path,
    jobs: int = 1,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Report:
    """Predict the chosen rows, `jobs` at a time, and score them."""
    chosen = [each for each in sets if not choice.sets or _is_named(each, choice.sets)]
    _require_known(choice.sets, sets)
    work = [(each, row) for each in chosen for row in choose(each, choice, cache=cache)]
    predictions: dict[str, Prediction] = {}
    failures: dict[str, str] = {}
    with _pool(jobs) as submit:
        waiting = {}
        for each, row in work:
            waiting[submit(each, row, cache)] = row
            progress(0 if jobs > 1 else len(waiting), len(work), row.id)
        for done, future in enumerate(as_completed(waiting), start=1):
            row = waiting[future]
            try:
                predictions[row.id] = future.result()
            except SandtableError as error:
                failures[row.id] = str(error)
            progress(done, len(work), row.id)
    scores, found = [], {}
    for each in chosen:
        for name in each.scores:
            result = score(each, name, predictions)
            scores.append(result)
            found[name] = contests(result, each.rank_within)
    return Report(scores=tuple(scores), contests=found, failures=failures)


def choose(row_set: RowSet, choice: Choice, *, cache: Path) -> list[Row]:
    """The rows of a set that are asked for."""
    rows = [row for row in row_set.rows if not choice.rows or row.id in choice.rows]
    if choice.captured_only:
        rows = [row for row in rows if Capture.of(row_set, row, cache=cache).exists]
    counted = [row for row in rows if row.use == "predict"]
    if choice.sample is not None and len(counted) > choice.sample:
        kept = {row.id for row in random.Random(0).sample(counted, choice.sample)}
        rows = [row for row in rows if row.use != "predict" or row.id in kept]
    return rows


def _is_named(row_set: RowSet, names: Iterable[str]) -> bool:
    return any(name == row_set.name or name in row_set.scores for name in names)


def _require_known(names: Iterable[str], sets: Sequence[RowSet]) -> None:
    known = sorted({each.name for each in sets} | {name for each in sets for name in each.scores})
    for name in names:
        if name not in known:
            raise ValidationSetError(f"--set must be a set or a score, but got '{name}'; there are {', '.join(known)}")


@contextmanager
def _pool(jobs: int) -> Iterator[Callable[[RowSet, Row, Path], "Future[Prediction]"]]:
    """Predictions in processes of their own, or with one job here."""
    if jobs == 1:
        yield _now
        return
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as executor:
        yield lambda row_set, row, cache: executor.submit(_predict, _without(row_set), row, cache)


def _now(row_set: RowSet, row: Row, cache: Path) -> "Future[Prediction]":
    future: Future[Prediction] = Future()
    try:
        future.set_result(predict(row_set, row, cache=cache))
    except SandtableError as error:
        future.set_exception(error)
    return future


def _without(row_set: RowSet) -> RowSet:
    """The set without its rows: hundreds of them need not travel with each."""
    return replace(row_set, rows=())


def _predict(row_set: RowSet, row: Row, cache: Path) -> Prediction:
    return predict(row_set, row, cache=cache)
