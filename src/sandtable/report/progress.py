"""Progress: what ranks print and how far a capture is, shown on a terminal while it runs."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from sandtable.events import Event, Noticed, RankCaptured, RankPrinted, RankStarted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["TerminalListener"]


class TerminalListener:
    """Prints lines as "[rank 3] text" on the streams they came from, above a progress bar on a terminal's stderr.

    Use it as a context:

        with TerminalListener() as listen:
            launcher.launch(job, listen=listen)
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._num_started = 0
        self._num_captured = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "TerminalListener":
        if self._err.isatty():
            self._start_bar()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case RankPrinted():
                self._write(f"[rank {event.rank}] {event.text}", self._err if event.is_error else self._out)
            case Noticed():
                self._write(event.text, self._err)
            case RankStarted():
                self._num_started += 1
                self._advance()
            case RankCaptured():
                self._num_captured += 1
                self._advance()

    def _write(self, text: str, stream: TextIO) -> None:
        if self._bar is not None and stream.isatty():
            self._bar.console.out(text, highlight=False)
        else:
            print(text, file=stream, flush=True)

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns: list[Any] = [TextColumn("ranks captured"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
        self._bar = Progress(*columns, console=Console(file=self._err), transient=True)
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def _advance(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._num_captured, total=self._num_started)
