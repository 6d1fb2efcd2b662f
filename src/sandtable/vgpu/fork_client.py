"""The fork client: the launcher's end of the fork server. It starts the server, requests ranks, and ends it."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from sandtable.errors import LaunchError
from sandtable.vgpu.fork_protocol import (
    SCRIPT_FILE,
    BeginLaunch,
    EndLaunch,
    KillRanks,
    LoadFailed,
    RankExited,
    RankForked,
    Ready,
    StartRank,
    StopRanks,
    UsageReported,
    encode,
    receive,
)
from sandtable.vgpu.settings import RankTask, ScriptSettings
from sandtable.vgpu.turns import Turns

__all__ = ["ForkClient"]

_GRACE_SECONDS = 5.0
_READ_AT_START = ("LD_", "PYTHON", "PYTORCH_", "TORCH_")
"""Prefixes of variables that Python and torch read when they start: a change needs a new fork server."""


class ForkClient:
    """A running fork server. Call `wait_until_ready` before anything else, and `close` at the end."""

    def __init__(self, runtime: str, core_path: str) -> None:
        self._is_ready = False
        self._counted_seconds = 0.0
        self._started_with = _read_at_start()
        self.turns = Turns()
        self.control, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", runtime),
                    *map(str, (far_end.fileno(), *self.turns.ends)),
                    core_path,
                ],
                pass_fds=[far_end.fileno(), *self.turns.ends],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"} | os.environ,
                start_new_session=True,
            )

    @property
    def process_id(self) -> int:
        """The fork server's process."""
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """Whether the server still runs, and would start no differently now."""
        return self._process.poll() is None and self._started_with == _read_at_start()

    def wait_until_ready(self) -> None:
        """Return when everything is loaded; raise what prevented it."""
        if self._is_ready:
            return
        match self._receive():
            case LoadFailed(error=error, traceback=text):
                raise error or LaunchError(f"the virtual GPU must load before a rank can start, but it failed:\n{text}")
            case Ready():
                self._is_ready = True

    def begin_launch(self, script: ScriptSettings, directory: Path) -> None:
        """Announce a launch that keeps its files in `directory`."""
        (directory / SCRIPT_FILE).write_bytes(pickle.dumps(script))
        self._send(BeginLaunch(directory=str(directory)))

    def end_launch(self) -> float:
        """End the launch, all of whose ranks have ended; return the processor time spent since the last one ended."""
        self._send(EndLaunch())
        while True:
            message = self._receive()
            if isinstance(message, UsageReported):
                spent = message.core_seconds - self._counted_seconds
                self._counted_seconds = message.core_seconds
                return spent

    def start(self, task: RankTask, far_ends: tuple[int, int, int]) -> None:
        """Request a rank. `event` reports its start and its end."""
        self._send(StartRank(task=task), far_ends)

    def stop_ranks(self) -> None:
        """Signal all ranks to stop and save their records."""
        self._send(StopRanks())

    def kill_ranks(self) -> None:
        """End all ranks; the fork server stays."""
        self._send(KillRanks())

    def event(self) -> RankForked | RankExited:
        """Wait for the next event."""
        message = self._receive()
        assert isinstance(message, RankForked | RankExited), f"unexpected message of the fork server: {message}"
        return message

    def close(self) -> None:
        """End the fork server and all its ranks; nothing is left when this returns."""
        self.control.close()
        self.turns.close()
        if not self._is_ready and self._process.poll() is None:
            self._process.kill()
        give_up = time.monotonic() + _GRACE_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > give_up:
                self._process.send_signal(signal.SIGKILL)
            time.sleep(0.002)

    def _send(self, message: object, descriptors: tuple[int, ...] = ()) -> None:
        try:
            if descriptors:
                socket.send_fds(self.control, [encode(message)], descriptors)
            else:
                self.control.send(encode(message))
        except (BrokenPipeError, ConnectionResetError):
            raise _ended() from None

    def _receive(self) -> object:
        try:
            message = receive(self.control)
        except ConnectionResetError:
            message = None
        if message is None:
            raise _ended()
        return message


def _read_at_start() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)}


def _ended() -> LaunchError:
    return LaunchError(
        "the fork server must outlive its ranks, but it ended; "
        "look for what it printed above, or for a lack of memory in the system's log"
    )
