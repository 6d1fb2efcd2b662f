"""Events: the list in which observers note what the script asked of torch."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sandtable.trace import EventKind, Line, ScriptEvent

__all__ = ["EventLog", "after", "before"]

_MOST_EVENTS = 100_000


class EventLog:
    """The events of this process in order, each with the script line and its place among the records."""

    def __init__(self, core: ModuleType) -> None:
        self.core = core
        self.events: list[ScriptEvent] = []
        self.only: frozenset[EventKind] | None = None
        """The kinds of events to note; None for all."""
        self._numbers: dict[str, weakref.WeakKeyDictionary[Any, int]] = defaultdict(weakref.WeakKeyDictionary)
        self._counts: dict[str, int] = defaultdict(int)

    def note(self, kind: EventKind, *, subject: int = 0, **facts: Any) -> None:
        """Note an event at the line of the script that is running."""
        if self.only is not None and kind not in self.only:
            return
        if len(self.events) < _MOST_EVENTS and not self.core.is_compiling():
            self.events.append(
                ScriptEvent(kind=kind, row=self.core.num_rows(), place=self.place(), subject=subject, facts=facts)
            )

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


def before(owner: Any, name: str, notice: Callable[..., None]) -> None:
    """Call `notice` with the arguments of each call of this function, before it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        notice(*args, **options)
        return original(*args, **options)

    setattr(owner, name, call)


def after(owner: Any, name: str, notice: Callable[..., None]) -> None:
    """Call `notice` with the result and the arguments of each call of this function, after it."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        notice(result, *args, **options)
        return result

    setattr(owner, name, call)
