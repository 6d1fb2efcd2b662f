"""Processes that a script starts with `multiprocessing`: `mp.spawn`, a loop of `Process`, a framework's own launcher.

Every such process is forked from the one that starts it, whatever the start method, so that it has the virtual GPU and
the packages that stand in for missing ones. A script that no launcher has told a rank may start its ranks itself. Such
a process offers itself to the launcher (see `spawned_ranks.py`): at its start if it is known how many start together,
else when it joins a process group. Then it waits, and a copy of it becomes the rank if that rank is to be captured.
Workers that never touch the GPU (data loaders, servers of queues) stay what they are; one that does is rejected,
because nobody would record it.

A process started with "spawn" or "forkserver" begins as in a fresh interpreter: the main module and the script's own
modules are imported again, arguments are pickled, and CUDA is not initialised. Installed libraries keep their state.
"""

from __future__ import annotations

import atexit
import marshal
import os
import re
import shlex
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import context, popen_spawn_posix, process, spawn, util
from typing import Any, NoReturn

from sandtable.vgpu.failures import is_library, script_place
from sandtable.vgpu.fork_protocol import (
    MAX_MESSAGE_BYTES,
    CommandStarted,
    RankEnded,
    RankForked,
    RankOffered,
    ScriptRelaunched,
    StartRank,
    decode,
    encode,
)
from sandtable.vgpu.output import flush_output
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.rank_run import RunningCapture, conclude, stop_on_signal, stop_reason
from sandtable.vgpu.settings import RankTask
from sandtable.vgpu.stop import SCRIPT_ENDED, ProcessRejected
from sandtable.vgpu.subprocesses import Subprocesses
from sandtable.vgpu.turns import Turn

__all__ = ["ChildProcesses"]

_UNKNOWN = -1

_WORKERS = ("multiprocessing.", "concurrent.", "torch.utils.data.", "torch._inductor.")
"""Modules whose processes are never ranks: pools, managers, executors, data loaders, compilers."""

_REMEDY = (
    "only ranks have a virtual GPU: a rank is a process that the script itself starts, before it uses the GPU, and "
    "that joins a process group; keep other processes on the CPU"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """How a process was started: where, and as which of its launch."""

    launch: int
    index: int
    num_processes: int
    file: str
    line: int
    may_be_rank: bool


class ChildProcesses:
    """The processes that this one starts, and this one if the script started it; `task` is that of its rank."""

    def __init__(self, task: RankTask, capture: RunningCapture, channel: RankChannel, turn: Turn) -> None:
        self.task = task
        self.programs = Subprocesses(may_start_ranks=bool(task.offer_address), hand_over=self._hand_over_command)
        self._capture = capture
        self._channel = channel
        self._turn = turn
        self._owner = os.getpid()
        """The process that has a rank, or starts the ranks; its workers inherit the number."""
        self._is_rank = not task.offer_address
        self._start: _Start | None = None
        self._next: _Start | None = None
        self._launch = 0
        self._num_processes = _UNKNOWN
        self._started: list[Any] = []
        self._has_used_gpu = False
        self._is_importing = False
        """Whether this process is spawned and imports the main module, which may ask what GPU there is."""
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._rejections, self._reject_to = os.pipe()
        os.set_blocking(self._rejections, False)

    @property
    def is_rank(self) -> bool:
        """Whether this process has a rank, and does not only start or become some."""
        return self._is_rank

    def install(self) -> None:
        """Have `multiprocessing` start processes through this object, and programs that are ranks only wait."""
        self.programs.install()
        os.register_at_fork(after_in_child=self._forget_start)
        fork, spawned = context.ForkProcess._Popen, popen_spawn_posix.Popen
        kinds: Any = {context.ForkProcess: fork, context.SpawnProcess: spawned, context.ForkServerProcess: spawned}
        for kind, forking in kinds.items():
            kind._Popen = staticmethod(self._popen(forking))
        bootstrap, spawn_process = process.BaseProcess._bootstrap, util.spawnv_passfds  # type: ignore[attr-defined]

        def run_as_child(child: Any, parent_sentinel: int | None = None) -> Any:
            if self._is_importing:
                self._is_importing = False
                self._capture.forget_cuda()
            if self._next is not None:
                self._start, self._next = self._next, None
                run = child.run
                child.run = lambda: self._run(run)
            return bootstrap(child, parent_sentinel)

        def fork_to_spawn(path: Any, args: Any, descriptors: Any) -> int:
            pipe = re.search(r"pipe_handle=(\d+)", " ".join(map(str, args)))
            if pipe is None or self._next is None:
                return int(spawn_process(path, args, descriptors))
            return self._fork_afresh(int(pipe[1]))

        process.BaseProcess._bootstrap = run_as_child  # type: ignore[attr-defined]
        util.spawnv_passfds = fork_to_spawn  # type: ignore[assignment]

    # ---- in the process that starts others ----

    @contextmanager
    def launching(self, num_processes: int) -> Iterator[None]:
        """Start this many processes together inside the block: they are ranks."""
        file, line = script_place()
        if self._is_rank:
            raise ProcessRejected(
                f"starts {num_processes} processes, but is itself one of {self.task.settings.world_size} ranks",
                file=file,
                line=line,
                remedy="remove the launch from the script and take RANK and LOCAL_RANK from the environment; or let "
                f"the script start its ranks alone: sandtable run -- python {shlex.join(sys.argv)}",
                rule="nested-launcher",
            )
        self._begin_launch(num_processes)
        try:
            yield
        finally:
            self._num_processes = _UNKNOWN

    def raise_rejection(self) -> None:
        """Raise the rejection that a worker of this process has reported, if there is one."""
        try:
            reported = os.read(self._rejections, 1 << 16)
        except BlockingIOError:
            return
        message, file, line = marshal.loads(reported)
        raise ProcessRejected(message, file=file, line=line, remedy=_REMEDY)

    def outlive_ranks(self) -> None:
        """Wait until the launch is over, at the end of a process that is a rank and has started others."""
        if self._connection is not None:
            self._channel.end_turn()
            self._connection.send(encode(RankEnded()))
            self._connection.recv(MAX_MESSAGE_BYTES)

    def _begin_launch(self, num_processes: int) -> None:
        self._launch += 1
        self._num_processes = num_processes
        self._started = []

    def _popen(self, forking: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what starts a process: `forking`, whatever the start method."""

        def popen(child: Any) -> Any:
            with self._lock:
                start = self._next = self._describe(child)
                try:
                    started = forking(child)
                finally:
                    self._next = None
                if start.may_be_rank:
                    self._started.append(started)
                return started

        return popen

    def _describe(self, child: Any) -> _Start:
        code = getattr(child, "_target", None) or type(child)
        is_worker = f"{getattr(code, '__module__', '')}.".startswith(_WORKERS) and self._num_processes == _UNKNOWN
        may_be_rank = not is_worker and not self._is_rank
        if may_be_rank:
            self._channel.stand_aside()
            if self._num_processes == _UNKNOWN and all(popen.poll() is not None for popen in self._started):
                self._begin_launch(_UNKNOWN)
        file, line = script_place()
        return _Start(
            launch=self._launch,
            index=len(self._started),
            num_processes=self._num_processes,
            file=file,
            line=line,
            may_be_rank=may_be_rank,
        )

    # ---- in the started process ----

    def before_cuda(self) -> None:
        """Reject a process that begins to use the GPU but can be no rank."""
        if os.getpid() == self._owner or self._is_importing:
            return
        if self._start is not None and self._start.may_be_rank:
            self._has_used_gpu = True
            return
        self._reject("uses the GPU and is no rank")

    def join_world(self, rank: int, world_size: int) -> None:
        """Become a rank, if this process is none yet; the script says which, in a world of which size."""
        if self.programs.has_started_ranks and not self._is_rank and self._start is None:
            self._hand_over(world_size)
        may_join = not self._is_rank and (self._start is None or self._start.may_be_rank)
        if may_join and (self._start is not None or self._started or world_size != self.task.settings.world_size):
            self._join(rank, world_size)
        settings = self.task.settings
        if (rank, world_size) != (settings.rank, settings.world_size):
            raise ValueError(
                f"init_process_group must agree with how the processes were started, but got rank {rank} of "
                f"{world_size} in the process that is rank {settings.rank} of {settings.world_size} "
                f"({settings.local_world_size} on each of {settings.world_size // settings.local_world_size} nodes); "
                "start as many processes as the world has ranks, give the nodes with sandtable run --nnodes, and take "
                "the number of a node from NODE_RANK"
            )

    def _hand_over(self, world_size: int) -> None:
        """Report the ranks that the script has started by starting itself, and wait to be ended: all begin again."""
        self._report(ScriptRelaunched(world_size=world_size, rank_variables=self.programs.rank_variables()))

    def _hand_over_command(self, command: CommandStarted) -> None:
        """Report a launch command, and wait to be ended: the job begins again with what it starts."""
        if not self._is_rank:
            self._report(command)

    def _report(self, report: ScriptRelaunched | CommandStarted) -> NoReturn:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(self.task.offer_address)
            connection.send(encode(report))
            connection.recv(MAX_MESSAGE_BYTES)
        os._exit(0)

    def _run(self, run: Callable[[], None]) -> None:
        """Run the process's code, as a rank if it is one."""
        assert self._start is not None, "only a started process runs"
        if not self._start.may_be_rank:
            run()
            return
        error: BaseException | None = None
        try:
            if self._start.num_processes != _UNKNOWN:
                self._join(_UNKNOWN, _UNKNOWN)
            run()
        except BaseException as raised:
            error = raised
        if self._is_rank:
            self._end_rank(error)
        elif self._has_used_gpu:
            self._reject("used the GPU, but joined no process group")
        if error is not None:
            raise error

    def _end_rank(self, error: BaseException | None) -> None:
        """Save and report; return only if the process goes on to its regular end."""
        if isinstance(error, SystemExit) and isinstance(error.__context__, Exception):
            error = error.__context__  # torch's wrapper writes the error to a file and exits
        code = conclude(error, self._capture, self.task, self._channel)
        self._channel.end_turn()
        if stop_reason(error) != SCRIPT_ENDED:
            flush_output()
            os._exit(code)

    def _join(self, rank: int, world_size: int) -> None:
        """Offer this process as a rank; return in a copy of it that is one, and leave this one to make more."""
        start = self._start
        offer = RankOffered(
            node=self.task.settings.group_rank,
            launch=start.launch if start else self._launch,
            index=start.index if start else _UNKNOWN,
            num_processes=start.num_processes if start else _UNKNOWN,
            rank=rank,
            world_size=world_size,
            process=os.getpid(),
            file=start.file if start else "",
            line=start.line if start else 0,
        )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.task.offer_address)
        connection.send(encode(offer))
        while True:
            packet, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 3)
            message = decode(packet) if packet else None
            if not isinstance(message, StartRank):
                flush_output()
                os._exit(0)
            if start is None:  # others are this process's children, and would not be those of a copy
                self._connection = connection
                self._become_rank(message.task, *descriptors)
                return
            rank_process = self._capture.copy_process()
            if rank_process == 0:
                connection.close()
                self._start = start
                self._become_rank(message.task, *descriptors)
                return
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(encode(RankForked(rank=message.task.settings.rank, process=rank_process)))

    def _become_rank(self, task: RankTask, channel: int, out: int, err: int) -> None:
        flush_output()
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        turn = self._turn.renewed()
        self._channel.attach(socket.socket(fileno=channel), task.settings.rank, turn)
        self._capture.become(task.settings)
        self.task, self._is_rank, self._owner = task, True, os.getpid()
        stop_on_signal(self._channel, first=self.raise_rejection)
        turn.begin()

    def _reject(self, what: str) -> None:
        """Report this process to the one it belongs to, which ends with the rejection, and end."""
        file, line = (self._start.file, self._start.line) if self._start is not None else ("", 0)
        message = f"starts a process that {what}"
        os.write(self._reject_to, marshal.dumps((message, file, line)))
        os.kill(self._owner, signal.SIGTERM)
        os._exit(1)

    def _forget_start(self) -> None:
        """In every forked process: it has not been started here, unless it is about to learn so."""
        self._start = None
        self._lock = threading.Lock()  # held while the process is started

    # ---- the start methods "spawn" and "forkserver" ----

    def _fork_afresh(self, pipe: int) -> int:
        """Fork, and in the child do what a fresh interpreter would do that reads its process object from `pipe`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, as multiprocessing itself does
            child = os.fork()
        if child != 0:
            return child
        code = 1
        try:
            atexit._clear()
            atexit.register(util._exit_function)  # type: ignore[attr-defined]
            self._capture.forget_cuda()
            self._is_importing = True
            _forget_script()
            code = spawn._main(pipe, os.dup(pipe))
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            flush_output()
            os._exit(code)


def _forget_script() -> None:
    """Drop the script's own modules, which a fresh interpreter imports again."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and not is_library(file):
            del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
