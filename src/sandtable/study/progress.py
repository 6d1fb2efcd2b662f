"""Show a study's progress in the terminal: the current run and the whole study, with the time left for each."""

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sandtable.events import Event
from sandtable.study.events import EpochFinished, MethodAdvanced, MethodFinished, MethodStarted, StudyStarted
from sandtable.study.results import StudyRun
from sandtable.study.table import headline
from sandtable.units import format_seconds

__all__ = ["StudyTerminal"]

_SPEED_WINDOW_S = 120.0
"""The time left is estimated from the speed of the last two minutes."""


class StudyTerminal:
    """A listener that draws bars on a terminal, prints a line per epoch into a file, and one per finished run."""

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
            speed_estimate_period=_SPEED_WINDOW_S,
            disable=not console.is_terminal,
        )
        self._run: TaskID | None = None
        self._study: TaskID | None = None
        self._num_runs = self._num_finished = 0

    def __enter__(self) -> "StudyTerminal":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case StudyStarted():
                self._start_study(event)
            case MethodStarted(method=method):
                name = f"[bold]{escape(method.name)}[/bold]"
                self._run = self._bars.add_task(name, total=None, note="workers are starting")
            case MethodAdvanced():
                self._advance(event)
            case MethodFinished(run=run):
                self._finish_run(run)
            case _:
                pass

    def _start_study(self, event: StudyStarted) -> None:
        self._console.print(f"[dim]{headline(event.settings)}[/dim]", highlight=False, soft_wrap=True)
        self._num_runs = len(event.methods)
        if event.num_stored:
            self._console.print(f"[dim]{event.num_stored} stored, {self._num_runs} to run[/dim]", highlight=False)
        self._study = self._bars.add_task("the study", total=float(self._num_runs), note="")

    def _advance(self, event: MethodAdvanced) -> None:
        assert self._run is not None
        assert self._study is not None
        self._bars.update(self._run, completed=float(event.num_steps), total=float(event.total_steps))
        self._bars.update(self._study, completed=self._num_finished + event.num_steps / event.total_steps)
        if isinstance(event, EpochFinished):
            note = f"epoch {event.epoch}: accuracy {event.accuracy:.2%}, loss {event.loss:.3f}"
            self._bars.update(self._run, note=note)
            if not self._console.is_terminal:
                self._console.print(f"{escape(event.method)}, {note}", highlight=False, soft_wrap=True)

    def _finish_run(self, run: StudyRun) -> None:
        assert self._run is not None
        assert self._study is not None
        self._bars.remove_task(self._run)
        self._num_finished += 1
        self._bars.update(self._study, completed=float(self._num_finished))
        self._console.print(
            f"{self._num_finished}/{self._num_runs} {escape(run.name)}: accuracy {run.accuracy:.2%} "
            f"in {format_seconds(run.seconds)}, {format_seconds(run.communication_s)} of it communication",
            highlight=False,
            soft_wrap=True,
        )
