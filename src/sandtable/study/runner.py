"""One configuration after the other, each stored as soon as it has ended."""

import importlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from sandtable.errors import SandtableError, StudyError
from sandtable.study.assignment import Assignment
from sandtable.study.data import load_images
from sandtable.study.lines import told
from sandtable.study.loopback import Loopback
from sandtable.study.method import Method
from sandtable.study.on_lab import OnLab
from sandtable.study.place import Place
from sandtable.study.results import Run
from sandtable.study.settings import StudySettings
from sandtable.study.store import Store

__all__ = ["View", "check_methods", "chosen", "place_for", "run_study"]

_TAIL = 15
"""Lines of a failed run's log that are shown."""


class View(Protocol):
    """Who watches a study."""

    def begin(self, methods: Sequence[Method], *, stored: Sequence[Run]) -> None: ...
    def start(self, method: Method) -> None: ...
    def advance(self, what: dict[str, Any]) -> None: ...
    def end(self, run: Run) -> None: ...


def run_study(assignment: Assignment, *, only: Sequence[str] = (), view: View, place: Place | None = None) -> list[Run]:
    """Run what is not stored yet; all runs of the study that are there in the end.

    Stopped by Ctrl-C, SIGTERM or an error, it leaves no process behind, and what had ended stays stored.
    """
    store = Store(assignment)
    methods = chosen(assignment.settings, only)
    left = [method for method in methods if store.find(method) is None]
    view.begin(left, stored=store.runs())
    if left:
        check_methods(left, assignment)
        load_images(assignment.settings.data, assignment.data)  # fetched once, before sixty workers ask for it
        assignment.save()
        with place or place_for(assignment.settings) as here:
            for method in left:
                view.start(method)
                view.end(_run(store, method, here, view))
                store.write_results(store.runs())
    runs = store.runs()
    store.write_results(runs)
    return runs


def chosen(settings: StudySettings, only: Sequence[str]) -> list[Method]:
    """The methods whose name contains one of the words of `only`, or all; a whole name means that one alone."""
    if not only:
        return list(settings.methods)
    names = [method.name for method in settings.methods]
    found: set[str] = set()
    for word in only:
        hits = {word} if word in names else {name for name in names if word.lower() in name.lower()}
        if not hits:
            raise StudyError(f"--only must be (a part of) a configuration's name, but got '{word}'; there are {names}")
        found |= hits
    return [method for method in settings.methods if method.name in found]


def check_methods(methods: Sequence[Method], assignment: Assignment) -> None:
    """Refuse what cannot work before the first run, not hours into the study."""
    from sandtable.study.kinds.choice import check_method  # imports torch, which takes seconds

    module = importlib.import_module(assignment.methods)
    for method in methods:
        try:
            check_method(method, module, assignment.settings)
        except SandtableError as error:
            raise StudyError(f"{method.name}: {error}") from None


def place_for(settings: StudySettings) -> Place:
    """Where the settings say that workers run."""
    return OnLab(settings) if settings.network.kind == "lab" else Loopback(workers=settings.workers)


def _run(store: Store, method: Method, place: Place, view: View) -> Run:
    said = _Said()
    with store.log_file(method).open("w", encoding="utf-8") as log:

        def show(line: str) -> None:
            if (what := told(line)) is None:
                log.write(line + "\n")
                said.tail.append(line)
            elif "error" in what:
                said.errors.append(what["error"])
            else:
                view.advance(what)

        index = store.assignment.settings.index_of(method.name)
        ended = place.run(store.assignment.file, index, show=show)
    if ended.exit_code == 0 and ended.wire_bytes is not None:
        store.note_wire_bytes(method, ended.wire_bytes)
    if ended.exit_code or (run := store.find(method)) is None:
        raise StudyError(said.explain(method, ended.exit_code, log=str(store.log_file(method))))
    return run


class _Said:
    """What workers said that is not progress."""

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.errors: list[str] = []

    def explain(self, method: Method, exit_code: int, *, log: str) -> str:
        if self.errors:
            return f"{method.name}: {self.errors[0]}"
        head = f"{method.name}: every worker must end well, but the run ended with exit code {exit_code}; see {log}"
        return "\n".join([head, *self.tail])
