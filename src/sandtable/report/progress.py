"""Progress: what ranks print and how far a rehearsal is, shown while it runs.

A terminal gets a progress bar. A pipe or a file (a log of CI, of a batch job) gets a line at the beginning and then one
every ten seconds, because minutes of silence look like a hang.
"""

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from sandtable.events import (
    CaptureEnded,
    Event,
    Failed,
    Finished,
    Noticed,
    Preparing,
    Priced,
    RankCaptured,
    RankPrinted,
    RankStarted,
    RankStepped,
    Started,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["TerminalListener"]

_INTERVAL_SECONDS = 10.0


class TerminalListener:
    """Prints lines as "[rank 3] text" on the streams they came from, and the progress on standard error.

    Use it as a context:

        with TerminalListener() as listen:
            launcher.launch(job, listen=listen)

    Where standard error is no terminal, a line about the progress follows every `interval_seconds`.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        interval_seconds: float = _INTERVAL_SECONDS,
    ) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._interval_seconds = interval_seconds
        self._progress = _Progress()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._reporter = threading.Thread(target=self._report, name="sandtable progress", daemon=True)

    def __enter__(self) -> "TerminalListener":
        if self._err.isatty():
            self._start_bar()
        else:
            self._reporter.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        else:
            self._reporter.join()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._progress.note(event)
        match event:
            case RankPrinted():
                self._write(f"[rank {event.rank}] {event.text}", self._err if event.is_error else self._out)
            case Noticed():
                self._write(event.text, self._err)
            case Started() if self._bar is None:
                self._write(f"sandtable: {self._progress.beginning}", self._err)
        self._advance()

    def _write(self, text: str, stream: TextIO) -> None:
        if self._bar is not None and stream.isatty():
            self._bar.console.out(text, highlight=False)
        else:
            with self._writing:
                print(text, file=stream, flush=True)

    def _report(self) -> None:
        """Write a line from time to time, in a thread of its own: the launching one is busy or waits."""
        while not self._ended.wait(self._interval_seconds):
            text = self._progress.describe()
            if text:
                self._write(f"sandtable: {text}", self._err)

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns: list[Any] = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        ]
        self._bar = Progress(*columns, console=Console(file=self._err), transient=True)
        self._task = self._bar.add_task("ranks captured", total=None)
        self._bar.start()

    def _advance(self) -> None:
        if self._bar is not None and self._task is not None:
            progress = self._progress
            self._bar.update(
                self._task,
                description=progress.activity or "ranks captured",
                completed=progress.num_captured,
                total=progress.num_started or None,
            )


class _Progress:
    """How far a rehearsal is, by its events."""

    def __init__(self) -> None:
        self.num_started = 0
        self.num_captured = 0
        self.beginning = ""
        self.activity = ""
        """What goes on while no rank runs; empty while ranks run."""
        self._start: float | None = None
        self._latest: tuple[int, int] | None = None

    def note(self, event: Event) -> None:
        """Take one event into account."""
        match event:
            case Started():
                self._start = time.monotonic()
                ranks = "1 rank" if event.world_size == 1 else f"{event.world_size} ranks"
                self.beginning = f"rehearsing on {ranks}: {' '.join(event.command)}"
            case Preparing():
                self.activity = event.text
            case RankStarted():
                self.activity = ""
                self.num_started += 1
            case RankStepped():
                self._latest = event.rank, event.num_steps
            case RankCaptured():
                self.num_captured += 1
            case CaptureEnded():
                self.activity = "computing the time of the run"
            case Priced():
                self.activity = "writing the report"
            case Finished() | Failed():
                self._start = None

    def describe(self) -> str:
        """Return one line about what goes on; nothing before the beginning and after the end."""
        start, latest = self._start, self._latest
        if start is None:
            return ""
        elapsed = f"{time.monotonic() - start:.0f} s"
        if self.activity:
            return f"{elapsed}, {self.activity}"
        step = f"; rank {latest[0]} has ended step {latest[1]}" if latest is not None else "; no step has ended yet"
        return f"{elapsed}, {self.num_captured} of {self.num_started} started ranks captured{step}"
