"""Rows: runs that others measured and published, and how to rehearse them.

A `RowSet` is one file of validation/rows; a `PublishedRow` is one of its runs, with the flags that make the script
repeat it. No code treats a row by its name: the files themselves mark the rows to calibrate on.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandtable.errors import ValidationSetError
from sandtable.toml_tables import load_table
from sandtable.validation.schema import CsvRows, RowFile, RowTable, ScoreTable

__all__ = ["PublishedRow", "RowSet", "load_set", "load_sets"]

_CHECKOUT = Path(__file__).parents[3] / "validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One measured run: all its settings, and the flags (`args`) that they become."""

    id: str
    use: str
    settings: Mapping[str, Any]
    measured: Mapping[str, float]
    args: tuple[str, ...]
    note: str = ""

    @property
    def gpus(self) -> int:
        return int(self.settings["gpus"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSet:
    """The rows of one publication, and the script that repeats its runs."""

    name: str
    title: str
    source: str
    cluster: str
    script: Path
    num_steps: int
    assumes: tuple[str, ...]
    rank_within: tuple[str, ...]
    scores: Mapping[str, ScoreTable]
    rows: tuple[PublishedRow, ...]

    def select(self, score: str) -> list[PublishedRow]:
        """Return the rows that have a figure for `score`."""
        return [row for row in self.rows if score in row.measured]


def load_sets(directory: Path | None = None) -> list[RowSet]:
    """Load every set in `directory`, sorted by name; it holds rows/ and scripts/.

    The default is validation/ of this checkout, or else of the current directory. No two rows may share an id.
    """
    directory = directory or (_CHECKOUT if _CHECKOUT.is_dir() else Path("validation"))
    files = [file for file in sorted((directory / "rows").glob("*.toml")) if _is_set(file)]
    if not files:
        raise ValidationSetError(
            f"{directory}/rows must hold files of published rows, but has none; run from a checkout of the repository, "
            "or give its validation directory with --from"
        )
    sets = [load_set(file) for file in files]
    _require_unique([row.id for row_set in sets for row in row_set.rows], "rows of all files")
    _require_unique([score for row_set in sets for score in row_set.scores], "scores of all files")
    return sets


def load_set(file: Path) -> RowSet:
    """Load the rows of `file`; its script must be in the directory `scripts` next to the file's own."""
    data = load_table(file, RowFile, error=ValidationSetError)
    scripts = file.parent.parent / "scripts"
    if not (scripts / data.script).is_file():
        raise ValidationSetError(f"{file}: script must be a file in {scripts}, but there is no '{data.script}'")
    tables = [*data.rows, *(_rows_of_csv(file, data.csv) if data.csv else ())]
    rows = tuple(_row(file, data, table) for table in tables)
    _require_unique([row.id for row in rows], str(file))
    return RowSet(
        name=file.stem,
        title=data.title,
        source=data.source,
        cluster=_cluster(file, data.cluster),
        script=scripts / data.script,
        num_steps=data.steps,
        assumes=data.assumes,
        rank_within=data.rank_within,
        scores=data.scores,
        rows=rows,
    )


def _is_set(file: Path) -> bool:
    """Return whether the file holds rows, not a machine of a set (`_name.toml`) or curves of collectives."""
    return not file.name.startswith("_") and not file.read_text(encoding="utf-8").count("\n[[curves]]\n")


def _rows_of_csv(file: Path, table: CsvRows) -> Iterable[RowTable]:
    lines = (file.parent / table.file).read_text(encoding="utf-8").splitlines()
    names: set[str] = set()
    for record in csv.DictReader(line for line in lines if line and not line.startswith("#")):
        settings = {name: _number(record[heading]) for heading, name in table.columns.items()}
        name = table.id.format(**settings)
        names.add(name)
        yield RowTable.model_validate(
            {
                "id": name,
                "use": "calibrate" if name in table.calibrate else "predict",
                "measured": {score: float(record[heading]) for score, heading in table.measured.items()},
                **settings,
            }
        )
    if unknown := sorted(set(table.calibrate) - names):
        raise ValidationSetError(f"{file}: csv.calibrate must name rows, but there is no {', '.join(unknown)}")


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _row(file: Path, data: RowFile, table: RowTable) -> PublishedRow:
    settings = {**data.settings, **table.settings}
    if not isinstance(settings.get("gpus"), int) or settings["gpus"] < 1:
        raise ValidationSetError(f"{file}: row {table.id} must have gpus, a number of at least 1; add it")
    if unknown := sorted(set(table.measured) - set(data.scores)):
        raise ValidationSetError(
            f"{file}: measured of row {table.id} must name scores of the file, but '{unknown[0]}' is none; "
            f"there are {', '.join(data.scores)}"
        )
    return PublishedRow(
        id=table.id,
        use=table.use,
        settings=settings,
        measured=table.measured,
        args=(*data.args, *_flags(data.flags, settings)),
        note=table.note,
    )


def _flags(flags: Mapping[str, str], settings: Mapping[str, Any]) -> Iterable[str]:
    """Yield a flag alone for a setting that is true, and none for one that is false or absent."""
    for name, flag in flags.items():
        value = settings.get(name, False)
        if value is True:
            yield flag
        elif value is not False:
            yield from (flag, str(value))


def _cluster(file: Path, name: str) -> str:
    return str(file.parent / name) if name.endswith(".toml") else name


def _require_unique(names: Sequence[str], place: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValidationSetError(f"{place}: names must be unique, but {', '.join(repeated[:5])} appear more than once")
