"""Progress in the terminal: the run at hand and the whole study, with the time left of each."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sandtable.study.method import Method
from sandtable.study.results import Run
from sandtable.units import format_seconds

__all__ = ["TerminalView"]

_SPEED_OVER_S = 120.0
"""Time left is judged by the speed of the last two minutes."""


class TerminalView:
    """Bars while somebody looks, a line an epoch in a file, and one for each finished run in any case."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
            transient=True,
            speed_estimate_period=_SPEED_OVER_S,
            disable=not console.is_terminal,
        )
        self._run: TaskID | None = None
        self._name = ""
        self._study: TaskID | None = None
        self._num_runs = self._num_ended = 0

    def __enter__(self) -> "TerminalView":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, methods: Sequence[Method], *, stored: Sequence[Run]) -> None:
        if stored:
            self._console.print(f"[dim]{len(stored)} stored, {len(methods)} to run[/dim]", highlight=False)
        self._num_runs = len(methods)
        self._study = self._bars.add_task("the study", total=float(self._num_runs), note="")

    def start(self, method: Method) -> None:
        note = "workers are starting"
        self._name = method.name
        self._run = self._bars.add_task(f"[bold]{escape(method.name)}[/bold]", total=None, note=note)

    def advance(self, what: dict[str, Any]) -> None:
        assert self._run is not None
        assert self._study is not None
        done, total = float(what["done"]), float(what["total"])
        self._bars.update(self._run, completed=done, total=total)
        self._bars.update(self._study, completed=self._num_ended + done / total)
        if "epoch" in what:
            note = f"epoch {what['epoch']}: accuracy {what['accuracy']:.2%}, loss {what['loss']:.3f}"
            self._bars.update(self._run, note=note)
            if not self._console.is_terminal:
                self._console.print(f"{escape(self._name)}, {note}", highlight=False, soft_wrap=True)

    def end(self, run: Run) -> None:
        assert self._run is not None
        assert self._study is not None
        self._bars.remove_task(self._run)
        self._num_ended += 1
        self._bars.update(self._study, completed=float(self._num_ended))
        self._console.print(
            f"{self._num_ended}/{self._num_runs} {escape(run.name)}: accuracy {run.accuracy:.2%} "
            f"in {format_seconds(run.seconds)}, {format_seconds(run.communication_s)} of it communication",
            highlight=False,
            soft_wrap=True,
        )
