"""The host clock of a rank: how long its host has worked or slept, as far as that would take as long on the cluster.

Long sleeps are cut short, because nobody wants to wait for them here, and counted as if they had been slept. Only those
of the main thread count: another one may sleep between heartbeats.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["HostTime", "HostWatch"]

_LONG_SECONDS = 10.0
"""Sleeps from here on are cut short: shorter ones may be part of polling."""

_NOTED_SECONDS = 0.2
"""The line of sleeps from here on is noted."""

_SHORT_SECONDS = 0.5


class HostTime(NamedTuple):
    """Seconds since the rank began: worked by its processor, and slept; and the line of its last long sleep."""

    worked: float = 0.0
    slept: float = 0.0
    file: str = ""
    line: int = 0


class HostWatch:
    """Measures this process, and shortens its sleeps; `place` returns the script's line."""

    def __init__(self, place: Callable[[], tuple[str, int]]) -> None:
        self._place = place
        self._slept = 0.0
        self._where = "", 0
        self._base = _worked_seconds()

    def install(self) -> None:
        """Shorten sleeps from now on."""
        sleep = time.sleep

        def shortened(seconds: Any) -> None:
            if threading.current_thread() is threading.main_thread():
                self._slept += float(seconds)
                if seconds >= _NOTED_SECONDS:
                    self._where = self._place()
            sleep(seconds if seconds < _LONG_SECONDS else _SHORT_SECONDS)

        time.sleep = shortened

    def read(self) -> HostTime:
        """Return the time until now."""
        return HostTime(_worked_seconds() - self._base, self._slept, *self._where)


def _worked_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
