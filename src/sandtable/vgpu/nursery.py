"""The nursery: the launcher's end of the zygote. It starts it, asks it for ranks, hears of their ends, and ends it."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

from sandtable.errors import LaunchError
from sandtable.vgpu.rank import Task
from sandtable.vgpu.turns import Turns
from sandtable.vgpu.wire import MAX_MESSAGE_BYTES

__all__ = ["Nursery"]

_PATIENCE_SECONDS = 5.0


class Nursery:
    """A running zygote; use it as a context. After it `core_seconds` is the time of the zygote and all its ranks."""

    def __init__(self, runtime: str, core_path: str) -> None:
        self.core_seconds = 0.0
        self._is_ready = False
        self.turns = Turns()
        self.control, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "sandtable.vgpu.zygote"),
                    *map(str, (far_end.fileno(), *self.turns.ends)),
                    *(runtime, core_path),
                ],
                pass_fds=[far_end.fileno(), *self.turns.ends],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"} | os.environ,
                start_new_session=True,
            )

    @property
    def process(self) -> int:
        return self._process.pid

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def wait_until_ready(self) -> None:
        """Returns when everything is loaded."""
        kind, *values = self._receive()
        if kind == "failed":
            error, text = values
            raise error or LaunchError(f"the virtual GPU must load before a rank can start, but it failed:\n{text}")
        self._is_ready = True

    def start(self, task: Task, *, channel: int, out: int, err: int) -> None:
        """Asks for a rank. Its start and its end are reported by `events`."""
        socket.send_fds(self.control, [pickle.dumps(task)], [channel, out, err])

    def kill_ranks(self) -> None:
        """Ends all ranks; the zygote goes on."""
        self.control.send(pickle.dumps("kill"))

    def event(self) -> tuple[str, int, int, int]:
        """The next event: ("started", rank, process, 0) or ("ended", rank, process, exit code)."""
        kind, rank, process, *code = self._receive()
        return kind, rank, process, code[0] if code else 0

    def close(self) -> None:
        """Ends the zygote and all its ranks; nothing is left when it returns."""
        self.control.close()
        if self._process.returncode is not None:
            return
        self.turns.close()
        if not self._is_ready:
            self._process.kill()
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while not self._has_ended():
            if time.monotonic() > give_up:
                self._process.send_signal(signal.SIGKILL)
            time.sleep(0.002)

    def _has_ended(self) -> bool:
        process, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if process == 0:
            return False
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.core_seconds = usage.ru_utime + usage.ru_stime
        return True

    def _receive(self) -> list[Any]:
        message = self.control.recv(MAX_MESSAGE_BYTES)
        if not message:
            raise LaunchError(
                "the process that ranks are forked from must outlive them, but it ended by itself; "
                "look for what it printed above, or for a lack of memory in the system's log"
            )
        return list(pickle.loads(message))
