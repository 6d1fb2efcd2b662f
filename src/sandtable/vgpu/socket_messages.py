"""Socket messages: what ranks send each other over their own sockets, recorded like calls of a process group.

A library that has its own protocol raises an audit event for each message, before it is sent and after it has arrived:

    sys.audit("sandtable.message", sock, "send" or "recv", header_bytes, payload_bytes)

and `sys.audit("sandtable.gathered")` where what a thread does next depends on all that any thread has received.

The bytes really travel. The port identifies the other end: all ranks are on this machine, and each reports the ports it
listens at and connects from to the launcher.
"""

from __future__ import annotations

import functools
import socket
import threading
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sandtable.vgpu.process_groups import GroupAnnouncer
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.steps import StepCounter

__all__ = ["MessageRecorder"]

_MESSAGE, _GATHERED = "sandtable.message", "sandtable.gathered"


class MessageRecorder:
    """Records messages between ranks, from the first socket of this rank on."""

    def __init__(self, core: ModuleType, channel: RankChannel, groups: GroupAnnouncer, steps: StepCounter) -> None:
        self._core = core
        self._channel = channel
        self._groups = groups
        self._steps = steps
        self._peers: WeakKeyDictionary[socket.socket, int] = WeakKeyDictionary()
        self._made_here: WeakSet[socket.socket] = WeakSet()
        self._lines: tuple[Any, ...] | None = None
        self._lock = threading.Lock()

    def install(self) -> None:
        """Have sockets that listen or connect report their ports."""
        listen, connect = socket.create_server, socket.create_connection

        @functools.wraps(listen)
        def create_server(*args: Any, **options: Any) -> socket.socket:
            listener = listen(*args, **options)
            self._report_port(listener)
            return listener

        @functools.wraps(connect)
        def create_connection(*args: Any, **options: Any) -> socket.socket:
            connection = connect(*args, **options)
            if self._rank_behind(connection) is not None:
                self._made_here.add(connection)
                self._report_port(connection)
            return connection

        socket.create_server, socket.create_connection = create_server, create_connection

    def _report_port(self, sock: socket.socket) -> None:
        self._channel.own_port(sock.getsockname()[1])
        with self._lock:
            if self._lines is None:
                self._lines = tuple(self._groups.new_line(f"sockets to {which} ranks") for which in ("higher", "lower"))
                self._core.watch_audit_events([_MESSAGE], lambda event, arguments: self._record(*arguments))
                self._core.watch_audit_events([_GATHERED], lambda event, arguments: self._core.gather_waits())

    def _record(self, sock: socket.socket, direction: str, header_bytes: int, payload_bytes: int) -> None:
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
            rank = self._channel.rank_at(sock.getpeername()[1])
            if rank is None:
                return None
            self._peers[sock] = rank
        return self._peers[sock]
