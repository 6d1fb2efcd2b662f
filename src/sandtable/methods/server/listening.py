"""Listening: accept connections in the background, one thread for each, and end them all afterwards."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

from sandtable.errors import MethodError
from sandtable.methods.server.directory import Directory
from sandtable.methods.server.message import Channel, tune

__all__ = ["FAREWELL_S", "TICK_S", "join_all", "listening", "terminated"]

TICK_S = 0.2
"""How often somebody who waits looks whether it is over."""
FAREWELL_S = 2.0
"""How long connections have to end by themselves."""


@contextlib.contextmanager
def listening(
    attend: Callable[[Channel], None],
    *,
    directory: Directory,
    place: int,
    name: str,
    limit_bytes: int,
    timeout_s: float,
    close: Callable[[], None],
) -> Iterator[list[threading.Thread]]:
    """Meanwhile `attend` every connection to `place` of the directory; then `close` must make them end."""
    threads: list[threading.Thread] = []
    over = threading.Event()
    host, port = directory.place(place)
    try:
        listener = socket.create_server((host, port), backlog=128)
    except OSError as error:
        raise MethodError(f"{name} must listen at {host}:{port}, but {error}; give a free one") from None
    listener.settimeout(TICK_S)

    def accept() -> None:
        while not over.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            tune(sock, timeout_s=timeout_s)
            channel = Channel(sock, limit_bytes=limit_bytes, stall_s=timeout_s)
            thread = threading.Thread(target=attend, args=(channel,), daemon=True)
            threads[:] = [one for one in threads if one.is_alive()]
            threads.append(thread)
            thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    directory.announce(place, (host, listener.getsockname()[1]))
    try:
        yield threads
    finally:
        over.set()
        listener.close()
        close()
        join_all([acceptor, *threads], FAREWELL_S)


def join_all(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def terminated() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, in the main thread; elsewhere signals cannot be caught, and it is never set."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)
