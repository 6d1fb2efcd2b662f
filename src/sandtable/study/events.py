"""Events of a study, for any listener of `sandtable.events`.

Workers are separate processes. The first one prints its events as marked lines of JSON among its other output;
`decode` restores them.
"""

import json
from dataclasses import asdict, dataclass

from sandtable.events import Event
from sandtable.study.method import Method
from sandtable.study.results import StudyRun
from sandtable.study.settings import StudySettings

__all__ = [
    "EpochFinished",
    "MethodAdvanced",
    "MethodFinished",
    "MethodStarted",
    "StudyFinished",
    "StudyStarted",
    "WorkerFailed",
    "decode",
    "encode",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStarted(Event):
    """A study begins: `methods` are to run, `num_stored` runs exist already."""

    settings: StudySettings
    methods: tuple[Method, ...]
    num_stored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodStarted(Event):
    """The workers of a method are starting."""

    method: Method


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodAdvanced(Event):
    """A method has trained `num_steps` of `total_steps`; sent at most twice a second."""

    method: str
    num_steps: int
    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished(MethodAdvanced):
    """A method has finished an epoch, counted from 1."""

    epoch: int
    loss: float
    accuracy: float
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFinished(Event):
    """A method was trained to the end, and its run is stored."""

    run: StudyRun


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFinished(Event):
    """All runs are stored; nothing follows."""

    runs: tuple[StudyRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed(Event):
    """A worker ended early, with an error meant for the user."""

    message: str


_MARK = "@study "
_WorkerEvent = MethodAdvanced | EpochFinished | WorkerFailed
_WORKER_EVENTS: dict[str, type[_WorkerEvent]] = {
    event.__name__: event for event in (MethodAdvanced, EpochFinished, WorkerFailed)
}


def encode(event: _WorkerEvent) -> str:
    """Return a worker's event as a marked line."""
    return f"{_MARK}{json.dumps({'event': type(event).__name__, **asdict(event)})}"


def decode(line: str) -> _WorkerEvent | None:
    """Return the event in a line; None if it is an ordinary line, or a marked one that was cut."""
    _, mark, text = line.partition(_MARK)
    if not mark:
        return None
    try:
        fields = json.loads(text)
        return _WORKER_EVENTS[fields.pop("event")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
