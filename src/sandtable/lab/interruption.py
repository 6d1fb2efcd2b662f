"""Handle signals while a lab is open: SIGTERM and SIGHUP end it in order, and nothing interrupts its removal."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["signals_raise", "uninterrupted"]

_TERMINATING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, as Ctrl-C is, so that open contexts get closed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = {number: signal.getsignal(number) for number in _TERMINATING}
    for number, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, _exit)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the block has ended: a second Ctrl-C must not leave half a lab."""
    held = {signal.SIGINT, *_TERMINATING}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
