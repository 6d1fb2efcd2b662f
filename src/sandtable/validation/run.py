"""Validate: rehearse the chosen rows, and compare the predictions with what was measured."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from sandtable import native
from sandtable.errors import SandtableError, ValidationSetError
from sandtable.events import Event, Listener, ignore
from sandtable.validation.prediction import capture_path, predict
from sandtable.validation.quantities import Prediction
from sandtable.validation.rows import PublishedRow, RowSet, load_sets
from sandtable.validation.scatter import scatter_svg
from sandtable.validation.scores import ValidationReport, contests, score

__all__ = [
    "Choice",
    "RowFailed",
    "RowPredicted",
    "RowStarted",
    "cache_directory",
    "choose",
    "save_report",
    "validate",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which rows to predict; by default all of them.

    `sets` are names of sets or scores, `rows` are ids. `sample` limits the rows per set that count, and always takes
    the same ones; rows used for calibration are kept. `captured_only` leaves out rows that have no capture yet.
    """

    sets: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    sample: int | None = None
    captured_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStarted(Event):
    """A row is about to be predicted, or waits for a free process; `done` of `total` rows are finished."""

    row_id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPredicted(Event):
    """A row has a prediction; `done` of `total` rows are finished."""

    row_id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailed(Event):
    """A row could not be rehearsed; `done` of `total` rows are finished."""

    row_id: str
    done: int
    total: int
    message: str


def validate(
    directory: Path | None = None,
    *,
    choice: Choice | None = None,
    cache: Path | None = None,
    jobs: int = 1,
    listen: Listener = ignore,
) -> ValidationReport:
    """Load the published rows in `directory`, predict the chosen ones, `jobs` at a time, and score them.

    The defaults are all rows of validation/ and the user's cache. Rows that fail are reported, not raised.
    """
    choice, cache = choice or Choice(), cache or cache_directory()
    sets = load_sets(directory)
    _require_known(choice.sets, sets)
    chosen = [row_set for row_set in sets if not choice.sets or _is_named(row_set, choice.sets)]
    work = [(row_set, row) for row_set in chosen for row in choose(row_set, choice, cache=cache)]
    predictions: dict[str, Prediction] = {}
    failures: dict[str, str] = {}
    for done, (row, future) in enumerate(_finished(work, cache=cache, jobs=jobs, listen=listen), start=1):
        try:
            predictions[row.id] = future.result()
            listen(RowPredicted(row_id=row.id, done=done, total=len(work)))
        except SandtableError as error:
            failures[row.id] = str(error)
            listen(RowFailed(row_id=row.id, done=done, total=len(work), message=str(error)))
    scores = [(row_set, score(row_set, name, predictions)) for row_set in chosen for name in row_set.scores]
    return ValidationReport(
        scores=tuple(result for _, result in scores),
        contests={result.name: contests(result, row_set.rank_within) for row_set, result in scores},
        failures=failures,
    )


def save_report(report: ValidationReport, directory: Path) -> None:
    """Write validation.json and validation.svg to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.to_dict(), indent=1)
    (directory / "validation.json").write_text(text + "\n", encoding="utf-8")
    (directory / "validation.svg").write_text(scatter_svg(report), encoding="utf-8")


def cache_directory() -> Path:
    """Return where captures and predictions are kept: beside the built libraries."""
    return native.cache_directory() / "validation"


def choose(row_set: RowSet, choice: Choice, *, cache: Path) -> list[PublishedRow]:
    """Return the chosen rows of a set."""
    rows = [row for row in row_set.rows if not choice.rows or row.id in choice.rows]
    if choice.captured_only:
        rows = [row for row in rows if capture_path(row_set, row, cache=cache).exists()]
    counted = [row for row in rows if row.use == "predict"]
    if choice.sample is not None and len(counted) > choice.sample:
        kept = {row.id for row in random.Random(0).sample(counted, choice.sample)}
        rows = [row for row in rows if row.use != "predict" or row.id in kept]
    return rows


def _is_named(row_set: RowSet, names: Iterable[str]) -> bool:
    return any(name == row_set.name or name in row_set.scores for name in names)


def _require_known(names: Iterable[str], sets: Sequence[RowSet]) -> None:
    known = sorted({row_set.name for row_set in sets} | {name for row_set in sets for name in row_set.scores})
    for name in names:
        if name not in known:
            raise ValidationSetError(f"--set must be a set or a score, but got '{name}'; there are {', '.join(known)}")


def _finished(
    work: Sequence[tuple[RowSet, PublishedRow]], *, cache: Path, jobs: int, listen: Listener
) -> Iterator[tuple[PublishedRow, "Future[Prediction]"]]:
    """Yield each row with its prediction as soon as it is ready: computed here, or with several jobs in processes."""
    if jobs == 1:
        for done, (row_set, row) in enumerate(work):
            listen(RowStarted(row_id=row.id, done=done, total=len(work)))
            yield row, _predict_here(row_set, row, cache)
        return
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as executor:
        waiting = {}
        for row_set, row in work:
            listen(RowStarted(row_id=row.id, done=0, total=len(work)))
            # Without its rows: hundreds of them need not travel with each.
            waiting[executor.submit(predict, replace(row_set, rows=()), row, cache=cache)] = row
        yield from ((waiting[future], future) for future in as_completed(waiting))


def _predict_here(row_set: RowSet, row: PublishedRow, cache: Path) -> "Future[Prediction]":
    future: Future[Prediction] = Future()
    try:
        future.set_result(predict(row_set, row, cache=cache))
    except SandtableError as error:
        future.set_exception(error)
    return future
