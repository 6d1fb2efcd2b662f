"""A captured rank: what happens in the forked process, from its start to the records it saves."""

import atexit
import faulthandler
import gc
import linecache
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import NoReturn, Protocol

from sandtable.launch import is_notebook, read_notebook
from sandtable.vgpu.child_processes import ChildProcesses
from sandtable.vgpu.failures import SCRIPT_ERROR
from sandtable.vgpu.imports import ImportLog
from sandtable.vgpu.node_memory import follow_node_memory
from sandtable.vgpu.output import flush_output
from sandtable.vgpu.protocol import ImportsLogged, RankFailed
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.rank_run import RunningCapture, conclude, stop_on_signal, stop_reason
from sandtable.vgpu.settings import RankSettings, RankTask, ScriptSettings
from sandtable.vgpu.stop import SCRIPT_ENDED
from sandtable.vgpu.turns import Turn

__all__ = ["PreparedRank", "RankCapture", "Runtime", "run_rank"]


class RankCapture(RunningCapture, Protocol):
    """A running capture that follows what the script's processes do with torch."""

    def attend(self, processes: ChildProcesses) -> None:
        """Report launches of processes, the first use of CUDA and the making of the world."""

    def before_freeze(self) -> None:
        """Note what is read later from objects that the garbage collector is about to forget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What makes the virtual GPU.

    `load(core_path)` is called once, in the fork server; `start(settings, channel)` in each rank after the fork, with
    its launcher's environment in place.
    """

    load: Callable[[str], None]
    start: Callable[[RankSettings, RankChannel], RankCapture]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRank:
    """A process that is a rank up to the first line of its script, and what it has printed until then."""

    capture: RankCapture
    channel: RankChannel
    printed: tuple[bytes, bytes] = (b"", b"")

    @classmethod
    def prepare(cls, task: RankTask, script: ScriptSettings, runtime: Runtime, channel: RankChannel) -> "PreparedRank":
        """Set up this process, and start the capture."""
        _set_up_process(task, script)
        faulthandler.enable(sys.stderr, all_threads=False)  # `failures.died` reads where a compiled function crashed
        return cls(capture=runtime.start(task.settings, channel), channel=channel)

    def become(self, task: RankTask, script: ScriptSettings, channel: socket.socket, turn: Turn) -> None:
        """Be this rank, in a process forked from the prepared one."""
        self.channel.attach(channel, task.settings.rank, turn)
        os.environ.update(task.environment)
        sys.argv[:] = _arguments(task, script)
        for descriptor, data in zip((1, 2), self.printed, strict=True):
            os.write(descriptor, data)
        self.capture.become(task.settings)


def run_rank(
    task: RankTask,
    script: ScriptSettings,
    runtime: Runtime,
    channel: socket.socket,
    turn: Turn,
    *,
    template: PreparedRank | None = None,
) -> NoReturn:
    """Wait for a turn, run the script as `python script.py` would, and end the process.

    With `template` this process was forked from a prepared one.
    """
    code = 1
    rank_channel = RankChannel(channel, task.settings.rank, turn) if template is None else template.channel
    turn.begin()
    try:
        if template is None:
            prepared = PreparedRank.prepare(task, script, runtime, rank_channel)
        else:
            prepared = template
            prepared.become(task, script, channel, turn)
        code = _capture(task, script, prepared, turn)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        rank_channel.report(RankFailed(rule=SCRIPT_ERROR, exit_code=1, traceback=text, text=f"raised {error!r}"))
    finally:
        flush_output()
        rank_channel.end_turn()
        os._exit(code)


def _set_up_process(task: RankTask, script: ScriptSettings) -> None:
    """Set environment, arguments and module path as the script would find them under its launcher."""
    os.environ.clear()
    os.environ.update(script.environment)
    os.environ.update(task.environment)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(script.directory)
    sys.argv = _arguments(task, script)
    # The fork server's Python was not started with the launcher's PYTHONPATH, if that sets one.
    paths = task.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.path.insert(0, script.directory if script.is_module else os.path.dirname(os.path.abspath(script.script)))
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        # Line by line, so that what a rank prints is seen when it prints it. Never closed: the process ends with it.
        stream = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _arguments(task: RankTask, script: ScriptSettings) -> list[str]:
    return [script.script, *task.leading_args, *script.script_args]


def _capture(task: RankTask, script: ScriptSettings, prepared: PreparedRank, turn: Turn) -> int:
    capture, channel = prepared.capture, prepared.channel
    processes = ChildProcesses(task, capture, channel, turn)
    processes.install()
    capture.attend(processes)
    follow_node_memory(lambda: processes.task, channel)
    stop_on_signal(channel, first=processes.raise_rejection)
    _follow_imports(task, script, prepared)
    error: BaseException | None = None
    namespace: dict[str, object] = {}
    try:
        namespace = _run_script(script)  # kept, because what Python frees after the script is not the script's work
    except BaseException as raised:
        error = raised
    code = conclude(error, capture, processes.task, channel)
    namespace.clear()
    processes.outlive_ranks()
    if stop_reason(error) == SCRIPT_ENDED:
        with suppress(Exception):
            atexit._run_exitfuncs()
    return code


def _follow_imports(task: RankTask, script: ScriptSettings, prepared: PreparedRank) -> None:
    """Log the imports if that is asked for, and forget what they leave to the garbage collector when they have ended.

    From there on garbage is collected at the same points of the script, whether or not ranks share imports.
    """
    log = ImportLog(script.rank_variables) if task.logs_imports else None

    def end() -> ImportsLogged | None:
        gc.collect()
        prepared.capture.before_freeze()
        gc.freeze()
        gc.collect()
        if log is None:
            return None
        # A module that is the script itself must not have been imported when it runs.
        return ImportsLogged(tuple(tuple(module) for module in log.finish() if module.name != script.script))

    prepared.channel.end_imports = end
    if log is not None:
        log.start()


def _run_script(script: ScriptSettings) -> dict[str, object]:
    """Run the script and return its global names."""
    if script.is_module:
        return runpy.run_module(script.script, run_name="__main__", alter_sys=True)
    if is_notebook(script.script):
        return _run_notebook(script.script)
    return runpy.run_path(script.script, run_name="__main__")


def _run_notebook(path: str) -> dict[str, object]:
    """Run the cells as one module; their lines can be found as those of a file can."""
    module = ModuleType("__main__")
    module.__dict__.update(__file__=path, display=print)
    sys.modules["__main__"] = module
    for cell in read_notebook(path).cells:
        lines = [f"{line}\n" for line in cell.lines]
        linecache.cache[cell.file] = (len(cell.source), None, lines, cell.file)
        exec(compile(cell.source, cell.file, "exec"), module.__dict__)
    return dict(module.__dict__)
