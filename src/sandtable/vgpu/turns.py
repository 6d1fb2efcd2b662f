"""Turns: no more ranks compute at a time than there are cores, however many are alive.

A capture may hold hundreds of ranks, most of which could run at any time. Switching between them every few milliseconds
costs a third of the time, because each comes back to cold caches. So a rank takes a turn, a byte in a pipe, and keeps
it until it has to wait for another rank. It also keeps the turn while it waits for an answer that is ready at once.

A rank may wait for others in ways the launcher does not see (a file that another rank writes). Then the cores fall
idle, and the launcher adds turns until they no longer do. A rank that is known to do so (it has sockets) takes no
turns. A rank may also compute forever: while no rank sends or prints anything, the launcher adds turns, too.
"""

import os
import select
import socket
import time
from collections.abc import Iterable

from sandtable.vgpu.processes import cpu_ticks, wants_core

__all__ = ["Turn", "Turns"]

_QUICK_SECONDS = 0.002
_LOOK_SECONDS = 1.0
_IDLE_TICKS = 30
"""Of 100 per second and core; fewer mean that something waits that should not."""

_SILENT_SECONDS = 5.0
"""Without news of any rank for this long, those that have the turns may never give them back."""


class Turn:
    """A rank's side: it has the turn, or waits for one."""

    def __init__(self, take: int, give: int) -> None:
        self._take = take
        self._give = give
        self._was_quick = True
        self._has_left = False

    def begin(self) -> None:
        """Wait for a turn."""
        if not self._has_left:
            os.read(self._take, 1)

    def end(self) -> None:
        """Let another rank compute."""
        if not self._has_left:
            os.write(self._give, b".")

    def leave(self) -> None:
        """Take no more turns, as a rank that waits for others in ways the launcher does not see."""
        if not self._has_left:
            self.end()
        self._has_left = True

    def send(self, channel: socket.socket, data: bytes) -> None:
        """Send to the launcher; let another rank compute while it does not take all.

        It may be sending to that rank, which reads when it has a turn.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[channel.send(rest, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            self.end()
            try:
                channel.sendall(rest)
            finally:
                self.begin()

    def renewed(self) -> "Turn":
        """Return a turn of the same launch, for a process that was forked from this one."""
        return Turn(self._take, self._give)

    def wait_for(self, channel: socket.socket) -> None:
        """Wait until there is something to read and this process has a turn, still or again."""
        if self._was_quick and _is_readable(channel, _QUICK_SECONDS):
            return
        start = time.monotonic()
        self.end()
        _is_readable(channel, None)
        self._was_quick = time.monotonic() - start < _QUICK_SECONDS
        self.begin()


class Turns:
    """The launcher's side: the pipe, and how many turns there are."""

    def __init__(self) -> None:
        self.ends = os.pipe()
        self.start_again()

    def start_again(self) -> None:
        """Reset the number of turns to the number of cores, when no rank runs."""
        take, give = self.ends
        while _is_readable(take, 0):
            os.read(take, 4096)
        os.write(give, b"." * len(os.sched_getaffinity(0)))
        self._ticks = 0
        self._last_news = time.monotonic()
        self._next_look = self._last_news + _LOOK_SECONDS

    def look(self, process_ids: Iterable[int], *, has_news: bool) -> None:
        """Add a turn, if it is time to look and the ranks have hardly computed since the last time, or are silent.

        On a machine with other work, ranks that want a core and do not get it are not idle. `has_news` if a rank has
        sent or printed something since the last call.
        """
        now = time.monotonic()
        if has_news:
            self._last_news = now
        if now < self._next_look:
            return
        processes = list(process_ids)
        ticks = sum(map(cpu_ticks, processes))
        is_idle = 0 <= ticks - self._ticks < _IDLE_TICKS and not any(map(wants_core, processes))
        if is_idle or now - self._last_news >= _SILENT_SECONDS:
            self.add(1)
        self._ticks = ticks
        self._next_look = now + _LOOK_SECONDS

    def add(self, count: int) -> None:
        """Add turns."""
        os.write(self.ends[1], b"." * count)

    def close(self) -> None:
        """Close the pipe."""
        for end in self.ends:
            os.close(end)


def _is_readable(source: socket.socket | int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
