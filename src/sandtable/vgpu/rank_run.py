"""What every rank does, whoever started its process: it stops at a signal, and at its end it saves and reports."""

import os
import signal
from collections.abc import Callable
from typing import Protocol

from sandtable.trace import Observations, RankRecords
from sandtable.vgpu.failures import at_moment, exit_code, failure
from sandtable.vgpu.loop_state import stack_of
from sandtable.vgpu.processes import private_bytes
from sandtable.vgpu.protocol import RankFailed, RankSaved
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.settings import RankSettings, RankTask
from sandtable.vgpu.stop import FAILED, OTHER_RANK_FAILED, SCRIPT_ENDED, StopCapture

__all__ = ["RunningCapture", "conclude", "observations_path", "stop_on_signal", "stop_reason"]


class RunningCapture(Protocol):
    """A running capture in this process."""

    @property
    def loaders(self) -> tuple[tuple[str, int, int, bool], ...]:
        """What is known of the data loaders of the script (`LoaderState`)."""

    @property
    def is_followed(self) -> bool:
        """Whether all wanted steps were captured, and the script went on."""

    @property
    def made_groups(self) -> tuple[tuple[tuple[int, ...], str, int], ...]:
        """The groups that `new_group` was called for (`MadeGroup`)."""

    def finish(self, stop_reason: str) -> RankRecords:
        """Stop recording and return the records."""

    def observations(self) -> Observations | None:
        """Return what was observed, if anything was to be."""

    def become(self, settings: RankSettings) -> None:
        """Record for this rank from now on, in a process that has made no process group yet."""

    def copy_process(self) -> int:
        """Fork a copy of this process in which CUDA stays what it was; return its process, or 0 in the copy."""

    def forget_cuda(self) -> None:
        """Forget that the process this one was forked from has initialised CUDA, if it has."""


def stop_on_signal(channel: RankChannel, *, first: Callable[[], None] = lambda: None) -> None:
    """Stop the capture at SIGTERM, which torchrun, too, sends when another rank has failed; call `first` before."""
    rank_process = os.getpid()

    def stop(number: int, frame: object) -> None:
        if os.getpid() != rank_process:  # a worker that the script forked
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        first()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        channel.stop(OTHER_RANK_FAILED)

    signal.signal(signal.SIGTERM, stop)


def conclude(error: BaseException | None, capture: RunningCapture, task: RankTask, channel: RankChannel) -> int:
    """Save the records and report the outcome; return the exit code. `error` is what ended the rank's code, if any."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reason = stop_reason(error)
    failed: RankFailed | None = failure(error) if error is not None and reason == FAILED else None
    try:
        records = capture.finish(reason)
        failed = failed and at_moment(failed, records)
        records.save(task.records_path)
        observations = capture.observations()
        if observations is not None:
            observations.save(observations_path(task))
        channel.report(
            RankSaved(
                stop_reason=records.stop_reason,
                digest=records.digest(),
                num_steps=records.num_steps,
                private_bytes=private_bytes("self"),
                has_flat_buffers=bool(records.flat_buffers),
                chunked_dims=records.chunked_dims,
                stack=stack_of(error),
                loaders=capture.loaders,
                made_groups=capture.made_groups,
                is_followed=capture.is_followed,
                has_ended=reason == SCRIPT_ENDED,
            )
        )
    except Exception:
        if failed is None:
            raise
    if failed is None:
        return 0
    channel.report(failed)
    return 1


def observations_path(task: RankTask) -> str:
    """Return the file in which a rank leaves its observations."""
    return f"{task.records_path}.observations"


def stop_reason(error: BaseException | None) -> str:
    """Return why a rank ends whose code ended with `error`, or returned."""
    stop = _stop_within(error)
    if stop is not None:
        return stop.reason
    return SCRIPT_ENDED if error is None or exit_code(error) == 0 else FAILED


def _stop_within(error: BaseException | None) -> StopCapture | None:
    """Find the stop, also where the script or a library raised something else because of it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, StopCapture):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
