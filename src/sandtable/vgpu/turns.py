"""Turns: only as many ranks compute at one time as there are cores, however many are alive.

A capture may hold hundreds of ranks, and most of them could run at any time. Switching between them every few
milliseconds costs a third of the time, for each comes back to cold caches. So a rank takes a turn, a byte in a pipe,
and keeps it until it has to wait for another rank. An answer that the launcher has ready at once is waited for with the
turn kept, so that asking does not end it.

A rank may wait for others in ways nobody sees (a file that another one writes). Then the cores fall idle, and the
launcher adds turns until they no longer do. A rank that is known to do so (it has sockets) leaves the turns to others.
"""

import os
import select
import socket
import time
from collections.abc import Iterable

from sandtable.vgpu.child import Child
from sandtable.vgpu.processes import cpu_ticks, wants_core

__all__ = ["Turn", "Turns"]

_QUICK_SECONDS = 0.002
_LOOK_SECONDS = 1.0
_IDLE_TICKS = 30
"""Of 100 a second and core: below it something waits that should not."""


class Turn:
    """A rank's side: it has the turn, or waits for one."""

    def __init__(self, take: int, give: int) -> None:
        self._take = take
        self._give = give
        self._was_quick = True
        self._has_left = False

    def begin(self) -> None:
        """Returns when it is this process's turn."""
        if not self._has_left:
            os.read(self._take, 1)

    def end(self) -> None:
        """Let another rank compute."""
        if not self._has_left:
            os.write(self._give, b".")

    def leave(self) -> None:
        """Compute whenever there is something to do: for a rank that waits for others in ways nobody sees."""
        if not self._has_left:
            self.end()
        self._has_left = True

    def wait_for(self, channel: socket.socket) -> None:
        """Returns when there is something to read, and it is this process's turn: still, or again."""
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
        """No rank runs: there are as many turns as cores, whatever became of those that had one."""
        take, give = self.ends
        while _is_readable(take, 0):
            os.read(take, 4096)
        os.write(give, b"." * len(os.sched_getaffinity(0)))
        self._ticks = 0
        self._next_look = time.monotonic() + _LOOK_SECONDS

    def look(self, children: Iterable[Child]) -> None:
        """Adds a turn, if it is time to look, and the ranks hardly did a thing since the last time and do not want to.

        (On a machine with other work to do they may have wanted to, in vain.)
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        processes = [child.process for child in children if child.process is not None]
        ticks = sum(map(cpu_ticks, processes))
        if 0 <= ticks - self._ticks < _IDLE_TICKS and not any(map(wants_core, processes)):
            os.write(self.ends[1], b".")
        self._ticks = ticks
        self._next_look = now + _LOOK_SECONDS

    def close(self) -> None:
        """Let go of the pipe."""
        for end in self.ends:
            os.close(end)


def _is_readable(source: socket.socket | int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
