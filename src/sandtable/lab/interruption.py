"""Signals while a lab stands: SIGTERM and SIGHUP end it in order, and nothing disturbs its being taken down."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["signals_end_in_order", "undisturbed"]

_POLITE = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_end_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP leave by an exception, as Ctrl-C does, so that what is open gets closed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return
    before = {number: signal.getsignal(number) for number in _POLITE}
    for number, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back Ctrl-C and its like until the block is done: a second Ctrl-C must not leave half a lab."""
    held = {signal.SIGINT, *_POLITE}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
