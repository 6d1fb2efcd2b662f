"""Events: one stream of what happens while a run is rehearsed.

A listener is any function that takes an event; the terminal, a notebook, a logger and a test each bring their own.
Events are plain frozen data. Rooms that report their own work (a study, a validation) add subclasses of `Event`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sandtable.findings import Finding

__all__ = [
    "CaptureEnded",
    "Event",
    "Failed",
    "Finished",
    "Listener",
    "Noticed",
    "Preparing",
    "Priced",
    "RankCaptured",
    "RankPrinted",
    "RankStarted",
    "RankStepped",
    "Started",
    "ignore",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of every event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """A capture begins."""

    command: tuple[str, ...]
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing(Event):
    """Before the first rank starts: what sandtable is waiting for, such as a build. Repeated while it takes time."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStarted(Event):
    """A rank begins to run; `is_sample` if it only verifies that its class does the same work."""

    rank: int
    is_sample: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrinted(Event):
    """A rank printed a line, to standard error if `is_error`."""

    rank: int
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStepped(Event):
    """A running rank has ended its `num_steps`-th step."""

    rank: int
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCaptured(Event):
    """A rank ended and its records are complete."""

    rank: int
    is_sample: bool = False
    num_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureEnded(Event):
    """No rank runs any more; the time of the captured run is computed next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed(Event):
    """A message from sandtable itself, such as why it starts again."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced(Event):
    """The time of the captured run has been computed."""

    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The rehearsal is complete; nothing follows."""

    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The rehearsal ended early; nothing follows."""

    message: str
    findings: tuple[Finding, ...] = ()


Listener = Callable[[Event], None]
"""Takes every event, in order, in the thread that launched the run."""


def ignore(event: Event) -> None:
    """Listen to nothing."""
