"""The listener: accepts connections in the background, one thread each, and ends them all afterwards."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

from sandtable.errors import MethodError
from sandtable.methods.server.addresses import AddressRegistry
from sandtable.methods.server.message import Channel, configure_socket

__all__ = ["DRAIN_S", "POLL_S", "join_all", "listen", "termination_event"]

POLL_S = 0.2
"""How often a waiting thread checks whether it is over."""
DRAIN_S = 2.0
"""How long connections may take to end by themselves."""


@contextlib.contextmanager
def listen(
    serve_connection: Callable[[Channel], None],
    *,
    registry: AddressRegistry,
    endpoint: int,
    name: str,
    limit_bytes: int,
    timeout_s: float,
    close: Callable[[], None],
) -> Iterator[list[threading.Thread]]:
    """Serve every connection to `endpoint` of the registry inside the block; at the end `close` must end them."""
    threads: list[threading.Thread] = []
    over = threading.Event()
    host, port = registry.listen_address(endpoint)
    try:
        listener = socket.create_server((host, port), backlog=128)
    except OSError as error:
        raise MethodError(f"{name} must listen at {host}:{port}, but {error}; give a free address") from None
    listener.settimeout(POLL_S)

    def accept() -> None:
        while not over.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            configure_socket(sock, timeout_s=timeout_s)
            channel = Channel(sock, limit_bytes=limit_bytes, stall_s=timeout_s)
            thread = threading.Thread(target=serve_connection, args=(channel,), daemon=True)
            threads[:] = [running for running in threads if running.is_alive()]
            threads.append(thread)
            thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    registry.announce(endpoint, (host, listener.getsockname()[1]))
    try:
        yield threads
    finally:
        over.set()
        listener.close()
        close()
        join_all([acceptor, *threads], DRAIN_S)


def join_all(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def termination_event() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets, in the main thread; in others signals cannot be caught, and it is never set."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)
