"""A captured rank: what happens in the forked process, from its first breath to the records it hands over.

The *runtime* is the module that makes the virtual GPU: it has `load(core_path)`, called once in the zygote, and a class
`Capture` with `Capture.start(settings, exchange)`, called here after the fork with torchrun's environment in place, and
`finish(stop_reason)`, which returns the `RankRecords`.
"""

import atexit
import os
import runpy
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Protocol

from sandtable.trace import RankRecords
from sandtable.vgpu.exchange import Exchange
from sandtable.vgpu.processes import private_bytes
from sandtable.vgpu.settings import RankSettings
from sandtable.vgpu.stop import SCRIPT_ENDED, StopCapture
from sandtable.vgpu.turns import Turn

__all__ = ["RunningCapture", "Runtime", "Task", "run_rank"]


class RunningCapture(Protocol):
    """A capture under way in this process."""

    def finish(self, stop_reason: str) -> RankRecords: ...


class CaptureClass(Protocol):
    def start(self, settings: RankSettings, exchange: Exchange) -> RunningCapture: ...


class Runtime(Protocol):
    """What the module named by `Job.runtime` offers."""

    Capture: CaptureClass

    def load(self, core_path: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that the forked process needs to become a rank."""

    settings: RankSettings
    script: str
    is_module: bool
    script_args: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    records_path: str


def run_rank(task: Task, runtime: Runtime, channel: socket.socket, turn: Turn) -> NoReturn:
    """Runs the script as `python script.py` would, when it is its turn, and leaves the process."""
    code = 1
    exchange = Exchange(channel, task.settings.rank, turn)
    turn.begin()
    try:
        _dress(task)
        code = _capture(task, runtime, exchange)
    except BaseException as error:
        exchange.report("failed", 1, "".join(traceback.format_exception(error)))
    finally:
        _flush()
        turn.end()
        os._exit(code)


def _dress(task: Task) -> None:
    """Environment, arguments and module path as the script would find them under torchrun."""
    os.environ.update(task.environment)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(task.directory)
    sys.argv = [task.script, *task.script_args]
    sys.path.insert(0, task.directory if task.is_module else os.path.dirname(os.path.abspath(task.script)))
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        # Line by line, so that what a rank prints is seen when it prints it. Never closed: the process leaves with it.
        stream = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _capture(task: Task, runtime: Runtime, exchange: Exchange) -> int:
    capture = runtime.Capture.start(task.settings, exchange)
    reason = SCRIPT_ENDED
    try:
        _run_script(task)
    except BaseException as error:
        stop = _stop_within(error)
        if stop is None and _exit_code(error) != 0:
            exchange.report("failed", _exit_code(error), _clean_traceback(error))
            return 1
        reason = SCRIPT_ENDED if stop is None else stop.reason
    records = capture.finish(reason)
    records.save(task.records_path)
    exchange.report("done", reason, records.digest(), records.num_steps, private_bytes("self"))
    if reason == SCRIPT_ENDED:
        with suppress(Exception):
            atexit._run_exitfuncs()
    return 0


def _run_script(task: Task) -> None:
    if task.is_module:
        runpy.run_module(task.script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(task.script, run_name="__main__")


def _stop_within(error: BaseException | None) -> StopCapture | None:
    """The stop, also where the script or a library raised something else because of it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, StopCapture):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _exit_code(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _clean_traceback(error: BaseException) -> str:
    """The script's own traceback: without the frames that led to it."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    if frame is None:  # the script itself could not be found, read or compiled
        return "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_exception(type(error), error, frame))


def _is_ours(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen ") or file == getattr(runpy, "__file__", "")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def as_runtime(module: Any) -> Runtime:
    """The module, seen as a runtime."""
    runtime: Runtime = module
    return runtime
