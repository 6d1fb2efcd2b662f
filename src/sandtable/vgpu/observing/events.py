"""Events: the list in which observers note what the script asked of torch."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sandtable.trace import EventKind, Line, ScriptEvent
from sandtable.vgpu.preload import loaded_core

__all__ = ["OBSERVATION_FAILED", "EventLog", "after", "before", "safely"]

_MOST_EVENTS = 100_000

OBSERVATION_FAILED = "observation failed"
"""The note of a rank on which something could not be observed."""


class EventLog:
    """The events of this process in order, each with the script line and its place among the records."""

    def __init__(self, core: ModuleType) -> None:
        self.core = core
        self.events: list[ScriptEvent] = []
        self.only: frozenset[EventKind] | None = None
        """The kinds of events to note; None for all."""
        self._numbers: dict[str, weakref.WeakKeyDictionary[Any, int]] = defaultdict(weakref.WeakKeyDictionary)
        self._counts: dict[str, int] = defaultdict(int)

    def note(self, kind: EventKind, *, subject: int = 0, at: Line | None = None, **facts: Any) -> dict[str, Any]:
        """Note an event, by default at the line of the script that is running.

        Return its facts, to which more may be added.
        """
        if self.only is not None and kind not in self.only:
            return facts
        if len(self.events) < _MOST_EVENTS and not self.core.is_compiling():
            self.events.append(
                ScriptEvent(kind=kind, row=self.core.num_rows(), place=at or self.place(), subject=subject, facts=facts)
            )
        return facts

    def place(self) -> Line:
        """Return the line of the script that is running."""
        return Line(*self.core.current_place())

    def number_of(self, kind: str, thing: Any) -> int:
        """Return the number of this object among those of its kind, in order of appearance."""
        numbers = self._numbers[kind]
        if thing not in numbers:
            numbers[thing] = self._counts[kind]
            self._counts[kind] += 1
        return numbers[thing]


def safely(notice: Callable[..., object]) -> Callable[..., None]:
    """Return the function as one whose failure is a note, and no error of the script."""

    @functools.wraps(notice)
    def call(*args: Any, **options: Any) -> None:
        try:
            notice(*args, **options)
        except Exception as error:  # a mistake of ours
            name = getattr(notice, "__qualname__", "a function")
            loaded_core().note(OBSERVATION_FAILED, f"{type(error).__name__} in {name}: {error}")

    return call


def before(owner: Any, name: str, notice: Callable[..., object]) -> None:
    """Call `notice` with the arguments of each call of this function, before it."""
    original, notice = getattr(owner, name), safely(notice)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        notice(*args, **options)
        return original(*args, **options)

    setattr(owner, name, call)


def after(owner: Any, name: str, notice: Callable[..., object]) -> None:
    """Call `notice` with the result and the arguments of each call of this function, after it."""
    original, notice = getattr(owner, name), safely(notice)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        notice(result, *args, **options)
        return result

    setattr(owner, name, call)
