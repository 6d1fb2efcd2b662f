"""Messages that ranks send each other over sockets of their own, written down like those of a process group.

A library that has its own protocol tells Python's audit hooks of each message, before it is sent and after it has
arrived:

    sys.audit("sandtable.message", sock, "send" or "recv", header_bytes, payload_bytes)

and with `sys.audit("sandtable.step")` where a step ends though this rank has no optimizer, `sys.audit(
"sandtable.gathered")` where what a thread does next depends on all that any thread has received.

The bytes travel for real. Who is at the other end is known by the port: all ranks are on this machine, and each tells
the launcher the ports it listens at and connects from.
"""

from __future__ import annotations

import functools
import socket
import sys
import threading
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sandtable.vgpu.exchange import Exchange
from sandtable.vgpu.process_groups import GroupAnnouncer
from sandtable.vgpu.steps import StepCounter

__all__ = ["MessageRecorder"]

_MESSAGE, _STEP, _GATHERED = "sandtable.message", "sandtable.step", "sandtable.gathered"


class MessageRecorder:
    """Writes down messages between ranks. Nothing is heard before the first socket of this rank is made."""

    def __init__(self, core: ModuleType, exchange: Exchange, groups: GroupAnnouncer, steps: StepCounter) -> None:
        self._core = core
        self._exchange = exchange
        self._groups = groups
        self._steps = steps
        self._peers: WeakKeyDictionary[socket.socket, int] = WeakKeyDictionary()
        self._made_here: WeakSet[socket.socket] = WeakSet()
        self._lines: tuple[Any, ...] | None = None
        self._lock = threading.Lock()

    def install(self) -> None:
        """Have sockets that listen or connect made known."""
        listen, connect = socket.create_server, socket.create_connection

        @functools.wraps(listen)
        def create_server(*args: Any, **options: Any) -> socket.socket:
            listener = listen(*args, **options)
            self._tell(listener)
            return listener

        @functools.wraps(connect)
        def create_connection(*args: Any, **options: Any) -> socket.socket:
            connection = connect(*args, **options)
            if self._rank_behind(connection) is not None:
                self._made_here.add(connection)
                self._tell(connection)
            return connection

        socket.create_server, socket.create_connection = create_server, create_connection

    def _tell(self, sock: socket.socket) -> None:
        self._exchange.own_port(sock.getsockname()[1])
        with self._lock:
            if self._lines is None:
                self._lines = tuple(self._groups.new_line(f"sockets to {which} ranks") for which in ("higher", "lower"))
                sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == _MESSAGE:
            self._write(*arguments)
        elif event == _STEP:
            self._steps.count()
        elif event == _GATHERED:
            self._core.gather_waits()

    def _write(self, sock: socket.socket, direction: str, header_bytes: int, payload_bytes: int) -> None:
        peer = self._rank_behind(sock)
        if peer is None or peer == self._groups.rank or self._lines is None:
            return  # not between two ranks
        import torch

        self._steps.go_on()
        # Two ranks may serve each other: on both ends a connection is on the line by who made it.
        line = self._lines[(self._groups.rank < peer) != (sock in self._made_here)]
        parcel = [torch.empty(header_bytes + payload_bytes, dtype=torch.uint8, device="meta")]
        if direction == "send":
            line.send(parcel, peer, 0)
        else:
            line.recv(parcel, peer, 0).wait()

    def _rank_behind(self, sock: socket.socket) -> int | None:
        if sock not in self._peers:
            found = self._exchange.rank_at(sock.getpeername()[1])
            if found is None:
                return None
            self._peers[sock] = found
        return self._peers[sock]
