"""A whole study in one call: load the settings, run the methods, compare them, and write table, plots and page."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandtable.events import Listener, ignore
from sandtable.study.comparison import ComparisonRow, compare
from sandtable.study.page import study_page
from sandtable.study.plots import require_matplotlib, write_plots
from sandtable.study.results import StudyRun
from sandtable.study.runner import check_methods, run_methods, select_methods
from sandtable.study.settings import StudySettings, load_settings
from sandtable.study.store import Assignment, Store, check_out_folder
from sandtable.study.table import headline, markdown

__all__ = [
    "ListedMethod",
    "PreparedMethod",
    "StudyInputs",
    "StudyListing",
    "StudyResult",
    "list_study",
    "prepare_study",
    "run_study",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInputs:
    """What the user gives: a settings file (None: the default study), folders, and values that override the settings.

    `only` selects configurations by (part of) their names. `command` is the command line, for the page.
    """

    file: Path | None = None
    data: Path | None = None
    out: Path = Path("sandtable-study")
    only: tuple[str, ...] = ()
    workers: int | None = None
    epochs: int | None = None
    network: Literal["loopback", "lab"] | None = None
    rate_mbit: float | None = None
    cores_per_host: float | None = None
    command: str = "sandtable study"

    def assignment(self) -> Assignment:
        """Load the settings, apply the overrides, and check both."""
        settings = load_settings(self.file) if self.file is not None else StudySettings()
        settings = settings.changed(
            workers=self.workers,
            epochs=self.epochs,
            kind=self.network,
            rate_mbit=self.rate_mbit,
            cores_per_host=self.cores_per_host,
        )
        return Assignment(settings=settings, data=self.data or _data_folder(), out=self.out)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """A finished study: its runs, rows that compare them with the first, and the files written."""

    settings: StudySettings
    runs: tuple[StudyRun, ...]
    rows: tuple[ComparisonRow, ...]
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMethod:
    """A configuration, as its settings write it, and whether its run is stored."""

    name: str
    expression: str
    is_stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyListing:
    """The configurations of a study; `headline` is its settings in one line."""

    headline: str
    methods: tuple[ListedMethod, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMethod:
    """A configuration and the command that runs it on every node of a cluster."""

    name: str
    command: str


def run_study(inputs: StudyInputs, *, listen: Listener = ignore) -> StudyResult:
    """Run what is not stored yet, compare all runs, and write results, table, plots and page into `inputs.out`."""
    assignment = inputs.assignment()
    check_out_folder(assignment.out)
    require_matplotlib()
    runs = run_methods(assignment, only=inputs.only, listen=listen)
    rows = compare(runs)
    table, page = assignment.out / "table.md", assignment.out / "study.html"
    files = (assignment.out / "results.json", *write_plots(rows, assignment.out), table, page)
    table.write_text(markdown(rows, assignment.settings), encoding="utf-8")
    page.write_text(study_page(rows, assignment.settings, command=inputs.command), encoding="utf-8")
    return StudyResult(settings=assignment.settings, runs=tuple(runs), rows=tuple(rows), files=files)


def list_study(inputs: StudyInputs) -> StudyListing:
    """List the configurations, and which of them are stored."""
    assignment = inputs.assignment()
    store = Store(assignment)
    methods = (
        ListedMethod(name=method.name, expression=method.expression, is_stored=store.find(method) is not None)
        for method in select_methods(assignment.settings, inputs.only)
    )
    return StudyListing(headline=headline(assignment.settings), methods=tuple(methods))


def prepare_study(inputs: StudyInputs) -> tuple[PreparedMethod, ...]:
    """Check the methods, write `study.json`, and return the torchrun command of each for a real cluster."""
    assignment = inputs.assignment()
    check_out_folder(assignment.out)
    methods = select_methods(assignment.settings, inputs.only)
    check_methods(methods, assignment)
    file = assignment.save()
    torchrun = "torchrun --nnodes ... --nproc-per-node ... -m sandtable.study.worker"
    return tuple(
        PreparedMethod(name=method.name, command=f"{torchrun} {file} {assignment.settings.index_of(method.name)}")
        for method in methods
    )


def _data_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sandtable" / "data"
