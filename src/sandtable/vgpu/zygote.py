"""The zygote: one process that has everything loaded, and divides.

Importing torch takes seconds; forking a process that has done so takes milliseconds, and the copies share its memory.
The launcher asks for a rank with one message that carries the rank's channel and output pipes; the zygote forks, and
tells when the rank has ended. It lives as long as the launcher: when their socket closes, by whatever death, all ranks
are ended, with whatever processes they started.

    python -m sandtable.vgpu.zygote <socket> <pipe of turns: its two ends> <runtime module> <path of the core>
"""

import gc
import importlib
import os
import pickle
import selectors
import shutil
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

from sandtable.errors import SandtableError
from sandtable.vgpu.processes import adopt_orphans, die_with_parent, kill_group
from sandtable.vgpu.rank import Runtime, Task, as_runtime, run_rank
from sandtable.vgpu.turns import Turn
from sandtable.vgpu.wire import MAX_MESSAGE_BYTES

__all__ = ["Zygote", "main"]


class Zygote:
    """The fork server. Messages to it: a task to start, or "kill"; from it: what became of every rank."""

    def __init__(self, control: socket.socket, turn: Turn, runtime: Runtime) -> None:
        self._control = control
        self._turn_of_rank = turn
        self._runtime = runtime
        self._process = os.getpid()
        self._ranks: dict[int, int] = {}
        self._directories: set[str] = set()
        self._wakeup, self._alarm = os.pipe()

    def serve(self) -> None:
        """Returns when the launcher is gone."""
        for descriptor in (self._wakeup, self._alarm):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            try:
                while self._turn([key.fileobj for key, _ in selector.select()]):
                    pass
            finally:
                self._end_all()

    def _turn(self, ready: list[object]) -> bool:
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
            self._reap()
        if self._control not in ready:
            return True
        message, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, 3)
        if not message:
            return False
        request = pickle.loads(message)
        if isinstance(request, Task):
            self._start(request, descriptors)
        else:
            self._kill_all()
        return True

    def _start(self, task: Task, descriptors: list[int]) -> None:
        process = os.fork()
        if process == 0:
            self._become(task, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._ranks[process] = task.settings.rank
        self._directories.add(os.path.dirname(task.records_path))
        self._tell("started", task.settings.rank, process)

    def _become(self, task: Task, descriptors: list[int]) -> NoReturn:
        """In the forked process: lets go of all that is the zygote's, and becomes the rank."""
        try:
            die_with_parent()
            if os.getppid() == self._process:
                self._let_go(descriptors)
                run_rank(task, self._runtime, socket.socket(fileno=descriptors[0]), self._turn_of_rank)
        finally:
            os._exit(1)

    def _let_go(self, descriptors: list[int]) -> None:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _, out, err = descriptors
        os.dup2(out, 1)
        os.dup2(err, 2)
        for descriptor in (out, err, self._wakeup, self._alarm):
            os.close(descriptor)
        self._control.close()
        gc.enable()

    def _reap(self) -> None:
        """Takes leave of processes that ended. A rank's own children end with it, while its number is still taken."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            rank = self._ranks.pop(found.si_pid, None)
            if rank is not None:
                kill_group(found.si_pid)
            _, status = os.waitpid(found.si_pid, 0)
            if rank is not None:
                self._tell("ended", rank, found.si_pid, os.waitstatus_to_exitcode(status))

    def _kill_all(self) -> None:
        for process in list(self._ranks):
            kill_group(process)

    def _end_all(self) -> None:
        """Returns when every rank is gone, not merely asked to go, and so are the files a dead launcher left."""
        self._kill_all()
        for process in self._ranks:
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)

    def _tell(self, *message: object) -> None:
        try:
            self._control.send(pickle.dumps(message))
        except OSError:
            self._kill_all()


def main(arguments: list[str]) -> int:
    """Loads the runtime, then serves."""
    *descriptors, runtime_name, core_path = arguments
    number, take, give = map(int, descriptors)
    control = socket.socket(fileno=number)
    die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    if not sys.flags.safe_path:
        del sys.path[0]  # The working directory, there because of `-m`; a rank puts its script's directory there.
    try:
        runtime = as_runtime(importlib.import_module(runtime_name))
        runtime.load(core_path)
    except BaseException as error:
        is_for_user = isinstance(error, SandtableError)
        control.send(pickle.dumps(("failed", error if is_for_user else None, traceback.format_exc())))
        return 1
    die_with_parent(0)
    gc.collect()
    gc.freeze()
    gc.disable()
    control.send(pickle.dumps(("ready",)))
    Zygote(control, Turn(take, give), runtime).serve()
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # Taking torch down in good order would take longer than some captures.
