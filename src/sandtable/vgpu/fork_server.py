"""The fork server: one process that has torch and the virtual GPU loaded, and forks a rank on request.

Importing torch takes seconds; forking a process that has done so takes milliseconds, and the copies share its memory.
It serves many launches, one after another. When its socket to the launcher closes, however the launcher ended, it ends
all ranks and whatever processes they started.

A launch may have a template, a fork server of its own that is forked from this one and has the script's libraries
imported, too (see `imports.py`). It takes requests over its own socket, and reports over the socket that it inherits.

An entry module (`runtime.py`, or a test's own) calls `serve` with the runtime, and is started by `fork_client.py` as

    python -m <entry module> <socket> <pipe of turns: its two ends> <path of the core>
"""

import gc
import os
import pickle
import resource
import selectors
import shutil
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from sandtable.errors import SandtableError
from sandtable.vgpu.fork_protocol import (
    MAX_MESSAGE_BYTES,
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
    decode,
    encode,
)
from sandtable.vgpu.imports import UnsafeImportError
from sandtable.vgpu.processes import adopt_orphans, die_with_parent, kill_group
from sandtable.vgpu.rank import PreparedRank, Runtime, run_rank
from sandtable.vgpu.settings import RankTask, ScriptSettings
from sandtable.vgpu.template import make_template
from sandtable.vgpu.turns import Turn

__all__ = ["ForkServer", "serve"]


def serve(runtime: Runtime) -> NoReturn:
    """Load the runtime, then fork ranks until the launcher is gone. Take the arguments from the command line."""
    *descriptors, core_path = sys.argv[1:]
    number, take, give = map(int, descriptors)
    # Taking torch down in good order would take longer than some captures.
    os._exit(_load_and_serve(runtime, core_path, socket.socket(fileno=number), Turn(take, give)))


def _load_and_serve(runtime: Runtime, core_path: str, control: socket.socket, turn: Turn) -> int:
    die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    if not sys.flags.safe_path:
        del sys.path[0]  # The working directory, there because of `-m`; a rank puts its script's directory there.
    try:
        runtime.load(core_path)
    except BaseException as error:
        for_user = error if isinstance(error, SandtableError) else None
        control.send(encode(LoadFailed(error=for_user, traceback=traceback.format_exc())))
        return 1
    die_with_parent(0)
    os.chdir("/")
    gc.collect()
    gc.freeze()
    gc.disable()
    control.send(encode(Ready()))
    ForkServer(control, turn, runtime).run()
    return 0


class ForkServer:
    """Forks ranks and reports what became of them."""

    def __init__(self, control: socket.socket, turn: Turn, runtime: Runtime) -> None:
        self._requests = self._reports = control
        self._turn = turn
        self._runtime = runtime
        self._process = os.getpid()
        self._ranks: dict[int, int] = {}
        self._directory: str | None = None
        self._script: ScriptSettings | None = None
        self._template_process: int | None = None
        self._template: PreparedRank | None = None
        """Set in the template itself."""
        self._wakeup, self._alarm = os.pipe()

    def run(self) -> None:
        """Serve requests; return when the launcher is gone."""
        for descriptor in (self._wakeup, self._alarm):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            try:
                while self._handle_ready([key.fileobj for key, _ in selector.select()]):
                    pass
            finally:
                self._end_all()

    def _handle_ready(self, ready: list[object]) -> bool:
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
            self._reap()
        if self._requests not in ready:
            return True
        packet, descriptors, _, _ = socket.recv_fds(self._requests, MAX_MESSAGE_BYTES, 3)
        if not packet:
            return False
        match decode(packet):
            case StartRank(task=task):
                self._start(task, descriptors)
            case ShareImports(task=task):
                self._start_template(task, descriptors)
            case BeginLaunch(directory=directory):
                self._directory = directory
                self._script = pickle.loads(Path(directory, SCRIPT_FILE).read_bytes())
            case StopRanks():
                for process in self._ranks:
                    os.kill(process, signal.SIGTERM)  # not reaped yet, so the number is still its own
            case KillRanks():
                self._kill_all()
            case EndLaunch():
                self._await_template()
                self._directory = self._script = None
                self._report(UsageReported(core_seconds=_core_seconds()))
        return True

    def _start(self, task: RankTask, descriptors: list[int]) -> None:
        process = os.fork()
        if process == 0:
            self._become_rank(task, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._ranks[process] = task.settings.rank
        self._report(RankForked(rank=task.settings.rank, process=process))

    def _become_rank(self, task: RankTask, descriptors: list[int]) -> NoReturn:
        """Release everything that belongs to the fork server, and become the rank; runs in the forked process."""
        try:
            die_with_parent()
            if os.getppid() == self._process:
                self._release_own(descriptors)
                assert self._script is not None, "a launch begins before its first rank"
                channel = socket.socket(fileno=descriptors[0])
                run_rank(task, self._script, self._runtime, channel, self._turn, template=self._template)
        finally:
            os._exit(1)

    def _start_template(self, task: RankTask, descriptors: list[int]) -> None:
        process = os.fork()
        if process == 0:
            self._become_template(task, descriptors[0])
        os.close(descriptors[0])
        self._template_process = process

    def _become_template(self, task: RankTask, requests: int) -> NoReturn:
        """Import what the script's libraries are, and serve ranks that have them; runs in the forked process."""
        try:
            die_with_parent()
            if os.getppid() == self._process:
                assert self._script is not None, "a launch begins before its template"
                assert self._directory is not None, "a launch has a directory"
                os.setpgid(0, 0)
                adopt_orphans()
                self._process, self._ranks, self._template_process = os.getpid(), {}, None
                self._requests = socket.socket(fileno=requests)
                self._release_signals()
                self._template = make_template(task, self._script, self._runtime, self._turn, self._directory)
                self._directory = None  # the first server's to remove
                self._wakeup, self._alarm = os.pipe()
                gc.collect()
                gc.freeze()
                gc.disable()
                self._report(ImportsShared(process=self._process))
                self.run()
        except UnsafeImportError as refusal:
            self._report(ImportsRefused(reason=str(refusal)))
        except BaseException as error:
            self._report(ImportsRefused(reason=f"the template failed: {error!r}"))
        finally:
            os._exit(0)

    def _await_template(self) -> None:
        """Wait for the end of the template, whose socket is closed."""
        if self._template_process is not None:
            with suppress(ChildProcessError):
                os.waitpid(self._template_process, 0)
            self._template_process = None

    def _release_own(self, descriptors: list[int]) -> None:
        os.setpgid(0, 0)
        self._release_signals()
        _, out, err = descriptors
        os.dup2(out, 1)
        os.dup2(err, 2)
        for descriptor in (out, err):
            os.close(descriptor)
        self._requests.close()
        self._reports.close()

    def _release_signals(self) -> None:
        """Have signals and the collector as a process of the script has them."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in (self._wakeup, self._alarm):
            os.close(descriptor)
        gc.enable()

    def _reap(self) -> None:
        """Wait for processes that ended. A rank's own children end with it, while its number is still taken."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            rank = self._ranks.pop(ended.si_pid, None)
            if rank is not None:
                kill_group(ended.si_pid)
            if ended.si_pid == self._template_process:
                self._template_process = None
            _, status = os.waitpid(ended.si_pid, 0)
            if rank is not None:
                self._report(RankExited(rank=rank, exit_code=os.waitstatus_to_exitcode(status)))

    def _kill_all(self) -> None:
        for process in list(self._ranks):
            kill_group(process)

    def _end_all(self) -> None:
        """Return when every rank is gone, not merely signalled, and so are the files a dead launcher left."""
        self._kill_all()
        self._await_template()
        for process in self._ranks:
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _report(self, message: object) -> None:
        try:
            self._reports.send(encode(message))
        except OSError:
            self._kill_all()


def _core_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
