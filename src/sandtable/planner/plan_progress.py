"""Progress of a search: a bar with the best so far and the time left, or lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sandtable.events import Event, Noticed
from sandtable.planner.search import SearchStarted, TrialEnded
from sandtable.planner.trial import TrialState
from sandtable.units import format_seconds

__all__ = ["PlanProgress"]

_INTERVAL_SECONDS = 10.0


class PlanProgress:
    """A listener that shows the events of a search; use it as a context."""

    def __init__(self, err: TextIO | None = None) -> None:
        self._console = Console(file=err or sys.stderr, highlight=False, markup=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._num_trials = self._num_ended = 0
        self._last_line = 0.0

    def __enter__(self) -> PlanProgress:
        if self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, SearchStarted):
            self._num_trials = event.num_trials
            if self._bar is not None:
                self._bar.add_task("", total=event.num_trials)
            else:
                self._print(f"{event.num_trials} configurations to rehearse")
        elif isinstance(event, TrialEnded):
            self._num_ended += 1
            self._show(event)
        elif isinstance(event, Noticed):
            self._print(event.text)

    def _show(self, event: TrialEnded) -> None:
        best = f"best {format_seconds(event.best.figures.step_seconds)}: {event.best.name}" if event.best else ""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._num_ended, description=best)
        elif not event.is_known and time.monotonic() - self._last_line > _INTERVAL_SECONDS:
            self._last_line = time.monotonic()
            state = event.trial.outcome.state
            ended = f"{event.trial.name} {'' if state is TrialState.PRICED else state.value}".strip()
            self._print(f"{self._num_ended} of {self._num_trials}: {ended}; {best or 'none runs so far'}")

    def _print(self, text: str) -> None:
        self._console.print(f"sandtable: {text}")
