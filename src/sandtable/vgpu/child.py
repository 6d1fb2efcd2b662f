"""A child: the launcher's side of one captured rank: its channel, its output and what became of it."""

import os
import socket
from dataclasses import dataclass
from typing import Any

from sandtable.vgpu.output import Lines, View
from sandtable.vgpu.wire import Frames, pack

__all__ = ["Child", "Outcome"]

_READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A capture that succeeded."""

    stop_reason: str
    digest: str
    num_steps: int


class Child:
    """One rank that runs, or is about to. `far_ends` are handed to the zygote and then closed."""

    def __init__(self, rank: int, view: View, *, is_sample: bool, is_hidden: bool) -> None:
        self.rank = rank
        self.is_sample = is_sample
        self.process: int | None = None
        self.outcome: Outcome | None = None
        self.failure: tuple[int, str] | None = None
        self.is_open = True
        self.is_closed = False
        self.private_bytes = 0
        self._frames = Frames()
        self.channel, self._far_channel = socket.socketpair()
        (self.out, self._far_out), (self.err, self._far_err) = os.pipe(), os.pipe()
        self.out_lines = Lines(view, rank, is_error=False, is_hidden=is_hidden)
        self.err_lines = Lines(view, rank, is_error=True, is_hidden=is_hidden)
        for descriptor in (self.out, self.err):
            os.set_blocking(descriptor, False)

    @property
    def far_ends(self) -> dict[str, int]:
        return {"channel": self._far_channel.fileno(), "out": self._far_out, "err": self._far_err}

    def close_far_ends(self) -> None:
        self._far_channel.close()
        os.close(self._far_out)
        os.close(self._far_err)

    def messages(self) -> list[tuple[Any, ...]]:
        """What came through the channel by now."""
        if self.is_closed:
            return []
        try:
            data = self.channel.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            return []
        self.is_open = bool(data)
        return self._frames.feed(data)

    def last_messages(self) -> list[tuple[Any, ...]]:
        """What is left in the channel of a rank that ended."""
        found: list[tuple[Any, ...]] = []
        size = -1
        while self.is_open and size != len(found):
            size = len(found)
            found += self.messages()
        return found

    def send(self, message: tuple[Any, ...]) -> None:
        try:
            self.channel.sendall(pack(message))
        except (BrokenPipeError, ConnectionResetError):
            return  # It ended meanwhile, which the zygote reports.

    def read_output(self, descriptor: int) -> bool:
        """Passes on what the rank printed; False at the end of the stream."""
        if self.is_closed:
            return True
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        (self.out_lines if descriptor == self.out else self.err_lines).feed(data)
        return bool(data)

    def finish_output(self) -> None:
        """Reads what the rank left in its pipes."""
        for descriptor, lines in ((self.out, self.out_lines), (self.err, self.err_lines)):
            while True:
                try:
                    data = os.read(descriptor, _READ_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    break
                lines.feed(data)
            lines.end()

    def close(self) -> None:
        self.is_closed = True
        self.channel.close()
        os.close(self.out)
        os.close(self.err)
