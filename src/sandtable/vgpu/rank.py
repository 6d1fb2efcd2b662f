"""A captured rank: what happens in the forked process, from its start to the records it saves."""

import atexit
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

from sandtable.trace import RankRecords
from sandtable.vgpu.failures import SCRIPT_ERROR, exit_code, failure
from sandtable.vgpu.processes import private_bytes
from sandtable.vgpu.protocol import RankFailed, RankSaved
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.settings import RankSettings, RankTask, ScriptSettings
from sandtable.vgpu.stop import FAILED, OTHER_RANK_FAILED, SCRIPT_ENDED, StopCapture
from sandtable.vgpu.turns import Turn

__all__ = ["RunningCapture", "Runtime", "run_rank"]


class RunningCapture(Protocol):
    """A running capture in this process."""

    def finish(self, stop_reason: str) -> RankRecords:
        """Stop recording and return the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What makes the virtual GPU.

    `load(core_path)` is called once, in the fork server; `start(settings, channel)` in each rank after the fork, with
    torchrun's environment in place.
    """

    load: Callable[[str], None]
    start: Callable[[RankSettings, RankChannel], RunningCapture]


def run_rank(task: RankTask, script: ScriptSettings, runtime: Runtime, channel: socket.socket, turn: Turn) -> NoReturn:
    """Wait for a turn, run the script as `python script.py` would, and end the process."""
    code = 1
    rank_channel = RankChannel(channel, task.settings.rank, turn)
    turn.begin()
    try:
        _set_up_process(task, script)
        code = _capture(task, script, runtime, rank_channel)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        rank_channel.report(RankFailed(rule=SCRIPT_ERROR, exit_code=1, traceback=text, text=f"raised {error!r}"))
    finally:
        _flush()
        turn.end()
        os._exit(code)


def _set_up_process(task: RankTask, script: ScriptSettings) -> None:
    """Set environment, arguments and module path as the script would find them under torchrun."""
    os.environ.clear()
    os.environ.update(script.environment)
    os.environ.update(task.environment)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.chdir(script.directory)
    sys.argv = [script.script, *script.script_args]
    sys.path.insert(0, script.directory if script.is_module else os.path.dirname(os.path.abspath(script.script)))
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        # Line by line, so that what a rank prints is seen when it prints it. Never closed: the process ends with it.
        stream = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _capture(task: RankTask, script: ScriptSettings, runtime: Runtime, channel: RankChannel) -> int:
    capture = runtime.start(task.settings, channel)
    reason = SCRIPT_ENDED
    failed: RankFailed | None = None
    _stop_on_signal(channel)
    try:
        _run_script(script)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop = _stop_within(error)
        if stop is not None:
            reason = stop.reason
        elif exit_code(error) != 0:
            reason, failed = FAILED, failure(error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        _save(capture, task, channel, reason)
    except Exception:
        if failed is None:
            raise
    if failed is not None:
        channel.report(failed)
        return 1
    if reason == SCRIPT_ENDED:
        with suppress(Exception):
            atexit._run_exitfuncs()
    return 0


def _save(capture: RunningCapture, task: RankTask, channel: RankChannel, reason: str) -> None:
    records = capture.finish(reason)
    records.save(task.records_path)
    channel.report(
        RankSaved(
            stop_reason=reason,
            digest=records.digest(),
            num_steps=records.num_steps,
            private_bytes=private_bytes("self"),
        )
    )


def _run_script(script: ScriptSettings) -> None:
    if script.is_module:
        runpy.run_module(script.script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script.script, run_name="__main__")


def _stop_on_signal(channel: RankChannel) -> None:
    """Stop the capture at SIGTERM, which torchrun, too, sends when another rank has failed."""
    rank_process = os.getpid()

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != rank_process:  # a worker that the script forked
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            channel.stop(OTHER_RANK_FAILED)

    signal.signal(signal.SIGTERM, stop)


def _stop_within(error: BaseException | None) -> StopCapture | None:
    """Find the stop, also where the script or a library raised something else because of it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, StopCapture):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
