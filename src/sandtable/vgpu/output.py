"""Output: what ranks print, line by line with the rank it came from, and how far the capture is."""

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Lines", "TerminalView", "View"]

_KEPT_LINES = 200


class View:
    """Sees a capture happen; this one looks away. Override what is of interest."""

    def rank_started(self, rank: int, *, is_sample: bool) -> None:
        """A rank begins to run."""

    def rank_ended(self, rank: int, *, is_sample: bool) -> None:
        """A rank was captured."""

    def line(self, rank: int, text: str, *, is_error: bool) -> None:
        """A rank printed a line, to standard error if `is_error`."""

    def note(self, text: str) -> None:
        """The launcher has something to say."""

    def close(self) -> None:
        """Nothing more will come."""


class TerminalView(View):
    """Lines as "[rank 3] text" on the streams they were printed to; a progress bar on a terminal's standard error."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._num_started = 0
        self._num_ended = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if self._err.isatty():
            self._start_bar()

    def rank_started(self, rank: int, *, is_sample: bool) -> None:
        self._num_started += 1
        self._advance()

    def rank_ended(self, rank: int, *, is_sample: bool) -> None:
        self._num_ended += 1
        self._advance()

    def line(self, rank: int, text: str, *, is_error: bool) -> None:
        self._write(f"[rank {rank}] {text}", self._err if is_error else self._out)

    def note(self, text: str) -> None:
        self._write(text, self._err)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

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
            self._bar.update(self._task, completed=self._num_ended, total=self._num_started)


class Lines:
    """Makes whole lines of what comes through a pipe, and keeps the last ones. Hidden ones are shown by `reveal`."""

    def __init__(self, view: View, rank: int, *, is_error: bool, is_hidden: bool) -> None:
        self._view = view
        self._rank = rank
        self._is_error = is_error
        self._is_hidden = is_hidden
        self._pending = b""
        self.kept: deque[str] = deque(maxlen=_KEPT_LINES)

    def feed(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._show(line)

    def end(self) -> None:
        """What is left without a newline is a line too."""
        if self._pending:
            self._show(self._pending)
            self._pending = b""

    def reveal(self) -> None:
        """Shows what was kept hidden so far."""
        if self._is_hidden:
            self._is_hidden = False
            for text in self.kept:
                self._view.line(self._rank, text, is_error=self._is_error)

    def _show(self, line: bytes) -> None:
        # A progress bar rewrites its line: only the last state is worth a line.
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")
        self.kept.append(text)
        if not self._is_hidden:
            self._view.line(self._rank, text, is_error=self._is_error)
