"""A rank process, seen from the launcher: its channel, its output, and how it ended."""

import os
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from sandtable.events import Listener, RankPrinted
from sandtable.vgpu.failures import is_own_crash_frame
from sandtable.vgpu.group_order import MadeGroup
from sandtable.vgpu.protocol import Answer, FrameReader, LoaderState, Message, RankFailed, RemovedFile, pack

__all__ = ["OutputLines", "RankOutcome", "RankProcess"]

_READ_BYTES = 1 << 18
_KEPT_LINES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """A rank that saved its records."""

    stop_reason: str
    digest: str
    num_steps: int
    has_flat_buffers: bool = False
    chunked_dims: tuple[tuple[int, int], ...] = ()
    stack: tuple[tuple[str, int], ...] = ()
    loaders: tuple[LoaderState, ...] = ()
    made_groups: tuple[MadeGroup, ...] = ()
    is_followed: bool = False
    has_ended: bool = False
    """Whether the script has ended by itself."""


class RankProcess:
    """One rank that runs, or is about to. `far_ends` are passed to the fork server and then closed."""

    def __init__(self, rank: int, listen: Listener, *, is_sample: bool, is_hidden: bool) -> None:
        self.rank = rank
        self.is_sample = is_sample
        self.process_id: int | None = None
        self.outcome: RankOutcome | None = None
        self.failure: RankFailed | None = None
        self.is_open = True
        self.is_closed = False
        self.private_bytes = 0
        self.removed_files: list[RemovedFile] = []
        self._frames = FrameReader()
        self._inbox: deque[Message] = deque()
        self.channel, self._far_channel = socket.socketpair()
        (self.out, self._far_out), (self.err, self._far_err) = os.pipe(), os.pipe()
        self.out_lines = OutputLines(listen, rank, is_error=False, is_hidden=is_hidden)
        self.err_lines = OutputLines(listen, rank, is_error=True, is_hidden=is_hidden)
        for descriptor in (self.out, self.err):
            os.set_blocking(descriptor, False)

    @property
    def far_ends(self) -> tuple[int, int, int]:
        """The rank's ends of its channel, its standard output and its standard error."""
        return self._far_channel.fileno(), self._far_out, self._far_err

    def close_far_ends(self) -> None:
        """Close this process's copies of the rank's ends."""
        self._far_channel.close()
        os.close(self._far_out)
        os.close(self._far_err)

    def messages(self, *, is_last: bool = False) -> Iterator[Message]:
        """Yield the messages that have arrived; with `is_last` all that a rank left when it ended.

        Messages that are not taken, because one before them raised an error, are yielded next time.
        """
        while self._receive() and is_last:
            pass
        while self._inbox:
            yield self._inbox.popleft()

    def _receive(self) -> bool:
        if self.is_closed or not self.is_open:
            return False
        try:
            data = self.channel.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            return False
        self.is_open = bool(data)
        self._inbox.extend(self._frames.feed(data))
        return self.is_open

    def send(self, answer: Answer) -> None:
        """Send an answer; a rank that has ended meanwhile, which the fork server reports, needs none."""
        try:
            self.channel.sendall(pack(answer))
        except (BrokenPipeError, ConnectionResetError):
            return

    def read_output(self, descriptor: int) -> bool:
        """Pass on what the rank printed; return False at the end of the stream."""
        if self.is_closed:
            return True
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        (self.out_lines if descriptor == self.out else self.err_lines).feed(data)
        return bool(data)

    def finish_output(self) -> None:
        """Read what the rank left in its pipes."""
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
        """Close the channel and the pipes."""
        self.is_closed = True
        self.channel.close()
        os.close(self.out)
        os.close(self.err)


class OutputLines:
    """Splits the bytes of a pipe into lines and keeps the last ones. Hidden lines are shown by `reveal`."""

    def __init__(self, listen: Listener, rank: int, *, is_error: bool, is_hidden: bool) -> None:
        self._listen = listen
        self._rank = rank
        self._is_error = is_error
        self._is_hidden = is_hidden
        self._pending = b""
        self.kept: deque[str] = deque(maxlen=_KEPT_LINES)

    def feed(self, data: bytes) -> None:
        """Add bytes that the rank printed."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._show(line)

    def end(self) -> None:
        """Show the last line even if it has no newline."""
        if self._pending:
            self._show(self._pending)
            self._pending = b""

    def reveal(self) -> None:
        """Show the lines hidden so far."""
        if self._is_hidden:
            self._is_hidden = False
            for text in self.kept:
                self._emit(text)

    def _show(self, line: bytes) -> None:
        # A progress bar rewrites its line: only the last state is worth showing.
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")
        if is_own_crash_frame(text):
            return
        self.kept.append(text)
        if not self._is_hidden:
            self._emit(text)

    def _emit(self, text: str) -> None:
        self._listen(RankPrinted(rank=self._rank, text=text, is_error=self._is_error))
