"""Futures: work that a script submits to another thread, and whose result it takes later.

A trace has one host. What a thread issues for a future stands where the future was made, because from then on the
thread could begin; where the thread waits for the card, the thread that takes the result waits instead. So records do
not depend on which thread was quicker, and the script's own thread is not held up by what others wait for.

Threads without a future (a server's) are followed by what wakes them: what a notified thread sends comes after
everything that the notifying thread has waited for.
"""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from sandtable.vgpu.stop import StopCapture

__all__ = ["follow_futures"]

_NUMBER, _SHARED = "_sandtable_job", "_sandtable_waits"


def follow_futures(core: ModuleType) -> None:
    """Have the recorder follow every future of this process."""
    _before(Future, "set_running_or_notify_cancel", core.begin_job)
    _before(Future, "set_result", core.end_job)
    _before(Future, "set_exception", core.end_job)
    _number_futures(core)
    _join_results(core)
    _follow_conditions(core)
    threading.excepthook = _quiet_at_stop(threading.excepthook)


def _before(kind: Any, name: str, notify: Any) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def notifying(self: Any, *args: Any) -> Any:
        notify(getattr(self, _NUMBER))
        return original(self, *args)

    setattr(kind, name, notifying)


def _number_futures(core: ModuleType) -> None:
    original = Future.__init__

    @functools.wraps(original)
    def numbered(self: Any) -> None:
        original(self)
        setattr(self, _NUMBER, core.submit_job())

    Future.__init__ = numbered  # type: ignore[method-assign]


def _join_results(core: ModuleType) -> None:
    original = Future.result

    @functools.wraps(original)
    def result(self: Any, timeout: float | None = None) -> Any:
        value = original(self, timeout)
        core.join_job(getattr(self, _NUMBER))
        return value

    Future.result = result  # type: ignore[method-assign]


def _follow_conditions(core: ModuleType) -> None:
    original_notify, original_wait = threading.Condition.notify, threading.Condition.wait

    @functools.wraps(original_notify)
    def notify(self: Any, n: int = 1) -> None:
        shared = core.share_waits(getattr(self, _SHARED, 0))
        if shared:
            setattr(self, _SHARED, shared)
        original_notify(self, n)

    @functools.wraps(original_wait)
    def wait(self: Any, timeout: float | None = None) -> bool:
        was_woken = original_wait(self, timeout)
        if was_woken and hasattr(self, _SHARED):
            core.take_waits(getattr(self, _SHARED))
        return was_woken

    threading.Condition.notify = notify  # type: ignore[method-assign]
    threading.Condition.wait = wait  # type: ignore[method-assign]


def _quiet_at_stop(original: Any) -> Any:
    """Report no exception of a thread that the end of the capture stopped."""

    def report(failure: Any) -> None:
        if not issubclass(failure.exc_type, StopCapture):
            original(failure)

    return report
