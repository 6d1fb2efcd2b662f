"""The fork client: the launcher's end of the fork server. It starts the server, requests ranks, and ends it.

Where ranks share imports (see `imports.py`), the requests that follow the first are held back until the first rank has
logged what its script imports and the template has imported it, or until it is clear that there will be no template.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from sandtable.errors import LaunchError
from sandtable.vgpu.fork_protocol import (
    MODULES_FILE,
    SCRIPT_FILE,
    BeginLaunch,
    EndLaunch,
    ImportsRefused,
    ImportsShared,
    KillRanks,
    LoadFailed,
    RankExited,
    RankForked,
    Ready,
    ShareImports,
    StartRank,
    StopRanks,
    UsageReported,
    encode,
    receive,
)
from sandtable.vgpu.imports import ImportedModule
from sandtable.vgpu.processes import cpu_ticks, wants_core
from sandtable.vgpu.settings import RankTask, ScriptSettings
from sandtable.vgpu.turns import Turns

__all__ = ["ForkClient"]

_GRACE_SECONDS = 5.0
_READ_AT_START = ("LD_", "PYTHON", "PYTORCH_", "TORCH_")
"""Prefixes of variables that Python and torch read when they start: a change needs a new fork server."""

_WORTHWHILE_SECONDS = 0.3
"""Imports that take less are not shared: making the template takes about as long."""

_IDLE_SECONDS = 1.0
"""A first rank that has not computed for this long may wait for ranks that are held back."""

_MAX_SLOWDOWN, _MAX_EXTRA_SECONDS = 3, 30.0
"""How much longer the template may take than the first rank did."""


class _Sharing(Enum):
    """How far a launch is with its template."""

    OFF = auto()
    """Every rank is forked from the fork server."""
    EXPECTED = auto()
    """No rank has been requested."""
    LOGGING = auto()
    """The first rank imports."""
    IMPORTING = auto()
    """The template imports."""
    ON = auto()
    """Every rank is forked from the template."""


class ForkClient:
    """A running fork server. Call `wait_until_ready` before anything else, and `close` at the end."""

    def __init__(self, runtime: str, core_path: str) -> None:
        self._is_ready = False
        self._counted_seconds = 0.0
        self._started_with = _read_at_start()
        self.turns = Turns()
        self.template_process: int | None = None
        """The process that has the script's libraries imported, if there is one."""
        self._directory = Path()
        self._sharing = _Sharing.OFF
        self._template: socket.socket | None = None
        self._first: RankTask | None = None
        self._first_process: int | None = None
        self._first_ticks = 0
        self._busy_until = 0.0
        self._held: deque[tuple[RankTask, tuple[int, ...]]] = deque()
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

    def begin_launch(self, script: ScriptSettings, directory: Path, *, shares_imports: bool) -> None:
        """Announce a launch that keeps its files in `directory`."""
        self._directory = directory
        self._sharing = _Sharing.EXPECTED if shares_imports else _Sharing.OFF
        (directory / SCRIPT_FILE).write_bytes(pickle.dumps(script))
        self._send(BeginLaunch(directory=str(directory)))

    def end_launch(self) -> float:
        """End the launch, all of whose ranks have ended; return the processor time spent since the last one ended."""
        self._close_template()
        self._send(EndLaunch())
        while True:
            message = self._receive()
            if isinstance(message, UsageReported):
                spent = message.core_seconds - self._counted_seconds
                self._counted_seconds = message.core_seconds
                return spent

    def start(self, task: RankTask, far_ends: tuple[int, int, int]) -> None:
        """Request a rank. `event` reports its start and its end."""
        if self._sharing is _Sharing.EXPECTED:
            self._sharing, self._first, self._first_process = _Sharing.LOGGING, task, None
            self._busy_until = time.monotonic() + _MAX_EXTRA_SECONDS
            self._send(StartRank(task=replace(task, logs_imports=True)), far_ends)
        elif self._sharing in (_Sharing.LOGGING, _Sharing.IMPORTING):
            self._held.append((task, tuple(map(os.dup, far_ends))))
        else:
            self._send(StartRank(task=task), far_ends, to=self._template)

    def share_imports(self, modules: Sequence[ImportedModule]) -> None:
        """Have ranks that follow share the imports of the first one, if that is worthwhile."""
        if self._sharing is not _Sharing.LOGGING or self._first is None:
            return
        seconds = sum(module.seconds for module in modules)
        if seconds < _WORTHWHILE_SECONDS:
            self._release(_Sharing.OFF)
            return
        (self._directory / MODULES_FILE).write_bytes(pickle.dumps(list(modules)))
        self._template, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            self._send(ShareImports(task=self._first), (far_end.fileno(),))
        self._sharing = _Sharing.IMPORTING
        self._busy_until = time.monotonic() + _MAX_SLOWDOWN * seconds + _MAX_EXTRA_SECONDS

    def check(self, *, is_quiet: bool) -> None:
        """Hold no rank back any longer if the first one seems to wait for others, or the template takes too long.

        The first one may ask the job's store for another rank again and again, so this cannot wait until it is quiet.
        """
        now = time.monotonic()
        if self._sharing is _Sharing.LOGGING and self._first_process is not None:
            ticks = cpu_ticks(self._first_process)
            if ticks != self._first_ticks or wants_core(self._first_process):
                self._first_ticks, self._busy_until = ticks, now + _IDLE_SECONDS
        if self._sharing in (_Sharing.LOGGING, _Sharing.IMPORTING) and now > self._busy_until:
            self._release(_Sharing.OFF)

    def stop_ranks(self) -> None:
        """Signal all ranks to stop and save their records."""
        self._send_to_all(StopRanks())

    def kill_ranks(self) -> None:
        """End all ranks; the fork server stays."""
        self._send_to_all(KillRanks())

    def event(self) -> RankForked | RankExited | None:
        """Wait for the next event; None if it does not concern a rank."""
        message = self._receive()
        match message:
            case ImportsShared(process=process):
                if self._sharing is _Sharing.IMPORTING:
                    self.template_process = process
                    self._release(_Sharing.ON)
                return None
            case ImportsRefused():
                if self._sharing is _Sharing.IMPORTING:
                    self._release(_Sharing.OFF)
                return None
            case RankForked(process=process) if self._first_process is None:
                self._first_process = process
                self._busy_until = time.monotonic() + _IDLE_SECONDS
        assert isinstance(message, RankForked | RankExited), f"unexpected message of the fork server: {message}"
        return message

    def close(self) -> None:
        """End the fork server and all its ranks; nothing is left when this returns."""
        self._close_template()
        self.control.close()
        self.turns.close()
        if not self._is_ready and self._process.poll() is None:
            self._process.kill()
        give_up = time.monotonic() + _GRACE_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > give_up:
                self._process.send_signal(signal.SIGKILL)
            time.sleep(0.002)

    def _release(self, sharing: _Sharing) -> None:
        """Decide where ranks are forked from, and request those that were held back."""
        self._sharing = sharing
        if sharing is _Sharing.OFF:
            self._close_template()
        while self._held:
            task, far_ends = self._held.popleft()
            self._send(StartRank(task=task), far_ends, to=self._template)
            for descriptor in far_ends:
                os.close(descriptor)

    def _close_template(self) -> None:
        """End the template and its ranks."""
        template, self._template, self.template_process = self._template, None, None
        if template is not None:
            template.close()

    def _send_to_all(self, message: object) -> None:
        if self._sharing in (_Sharing.LOGGING, _Sharing.IMPORTING):
            self._release(_Sharing.OFF)
        self._send(message)
        if self._template is not None:
            self._send(message, to=self._template)

    def _send(self, message: object, descriptors: tuple[int, ...] = (), *, to: socket.socket | None = None) -> None:
        receiver = self.control if to is None else to
        try:
            if descriptors:
                socket.send_fds(receiver, [encode(message)], descriptors)
            else:
                receiver.send(encode(message))
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
