"""Breakdown: where the time of a step goes on one rank.

The main stream of a device is a strip of film: runs of operators, calls, waits, and gaps, one after the other, without
overlap. Every stretch of the strip gets one reason, so the parts add up to the step:

    a run                   its phase while the device is busy; for the rest the host was late
    a call on the strip     waiting until the last member comes, then communication
    a wait                  for a call on another stream: the same two parts of that call
    a gap                   nothing was issued: the host was late
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sandtable.engine.clock import Times
from sandtable.engine.program import Opcode, Program
from sandtable.trace.kinds import Phase

__all__ = ["Breakdown", "break_down"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Nanoseconds of one step on one rank; they add up to the step."""

    forward: int = 0
    backward: int = 0
    recompute: int = 0
    optimizer: int = 0
    communication: dict[str, int] = field(default_factory=dict)
    """Exposed communication by axis: the compute stream waits for it."""
    bubble: int = 0
    """Waiting for a neighbour in the pipeline."""
    straggler: int = 0
    """Waiting for the last member of a collective."""
    host: int = 0
    """The host had not issued the next operator yet."""
    input: int = 0
    """Data on its way from the host."""
    other: int = 0

    @property
    def total(self) -> int:
        parts = (self.forward, self.backward, self.recompute, self.optimizer, self.bubble, self.straggler, self.host)
        return sum(parts) + self.input + self.other + sum(self.communication.values())


def break_down(
    program: Program,
    times: Times,
    axes: tuple[str, ...],
    *,
    window: tuple[int, int],
    step: int,
) -> Breakdown:
    """Return the breakdown of `window`, step number `step`; `axes` names the axis of each edge of the program."""
    strip = _MainStream(program, times, window)
    busy = {phase: strip.busy(phase) for phase in Phase}
    waiting_p2p, waiting_others, communication = strip.calls(axes)
    copies = strip.copies()
    known = sum(busy.values()) + waiting_p2p + waiting_others + sum(communication.values()) + copies + strip.elsewhere
    tail = strip.tail(step)
    return Breakdown(
        forward=busy[Phase.FORWARD],
        backward=busy[Phase.BACKWARD],
        recompute=busy[Phase.RECOMPUTE],
        optimizer=busy[Phase.OPTIMIZER],
        communication=communication,
        bubble=waiting_p2p,
        straggler=waiting_others + tail,
        host=max(window[1] - window[0] - known - tail, 0),
        input=copies,
        other=strip.elsewhere,
    )


class _MainStream:
    """The instructions of the main stream, clipped to the window."""

    def __init__(self, program: Program, times: Times, window: tuple[int, int]) -> None:
        self.program, self.times, self.window = program, times, window
        work = np.where((program.kind == Opcode.RUN) & (program.is_copy == 0), program.work_ns, 0)
        by_stream = np.bincount(program.stream, weights=work, minlength=1)
        self.main = int(by_stream.argmax())
        on_main = (program.stream == self.main) & (times.end_ns >= 0)
        self.runs = np.flatnonzero(on_main & (program.kind == Opcode.RUN) & (program.is_copy == 0))
        self.copying = np.flatnonzero(on_main & (program.kind == Opcode.RUN) & (program.is_copy == 1))
        self.meetings = np.flatnonzero(on_main & (program.kind == Opcode.CALL))
        self.waits = np.flatnonzero(on_main & (program.kind == Opcode.WAIT) & (program.arg >= 0))
        self.elsewhere = 0

    def tail(self, step: int) -> int:
        """Return the time from this rank's end of the step to the slowest rank's."""
        if not len(self.program.steps):
            return 0
        end = int(self.times.end_ns[self.program.steps[step - 1]])
        return max(self.window[1] - max(end, self.window[0]), 0)

    def busy(self, phase: Phase) -> int:
        """Return how long runs of a phase keep the device busy, without their waiting for the host."""
        runs = self.runs[self.program.phase[self.runs] == phase]
        start, end = self.times.start_ns[runs], self.times.end_ns[runs]
        length = np.maximum(end - start, 1)
        alone = np.maximum(self.times.issue_ns[runs] + self.program.lag_ns[runs] - start, self.program.work_ns[runs])
        late = np.clip(alone - self.program.work_ns[runs], 0, length)
        share = 1 - late / length
        return int(np.rint((self._clip(start, end) * share).sum()))

    def copies(self) -> int:
        return int(self._clip(self.times.start_ns[self.copying], self.times.end_ns[self.copying]).sum())

    def calls(self, axes: tuple[str, ...]) -> tuple[int, int, dict[str, int]]:
        """Return the waiting in messages, the waiting in collectives, and communication by axis."""
        blamed, begin, end = self._blamed()
        if not len(blamed):
            return 0, 0, {}
        meet = self.times.meet_ns[blamed]
        edge = self.program.row_edge[self.program.arg[blamed]]
        is_p2p = np.array([e.is_p2p for e in self.program.edges])[edge]
        split = np.clip(meet, begin, end)
        waiting = self._clip(begin, split)
        moving = self._clip(split, end)
        by_edge = np.bincount(edge, weights=moving, minlength=len(axes))
        communication: dict[str, int] = {}
        for axis, value in zip(axes, by_edge.tolist(), strict=True):
            if value >= 1:
                communication[axis] = communication.get(axis, 0) + int(value)
        return int(waiting[is_p2p].sum()), int(waiting[~is_p2p].sum()), communication

    def _blamed(self) -> tuple[I64, I64, I64]:
        """Return the calls that hold up the main stream, its own and those it waits for, and from when to when."""
        program, times = self.program, self.times
        waits = self.waits[times.end_ns[self.waits] > times.start_ns[self.waits]]
        last_call = _last_call_on_stream(program)
        cause = last_call[program.arg[waits]]
        # An event behind a call carries the call's end; one behind other work does not.
        is_call = (cause >= 0) & (times.end_ns[np.maximum(cause, 0)] == times.end_ns[program.arg[waits]])
        others = waits[~is_call]
        self.elsewhere = int(self._clip(times.start_ns[others], times.end_ns[others]).sum())
        blamed = np.concatenate([self.meetings, cause[is_call]])
        begin = np.concatenate([times.start_ns[self.meetings], times.start_ns[waits[is_call]]])
        end = np.concatenate([times.end_ns[self.meetings], times.end_ns[waits[is_call]]])
        return blamed, begin, end

    def _clip(self, begin: I64, end: I64) -> I64:
        """Return the lengths inside the window."""
        low, high = self.window
        return np.maximum(np.clip(end, low, high) - np.clip(begin, low, high), 0)


def _last_call_on_stream(program: Program) -> I64:
    """Return for each instruction the last call on its stream up to itself; -1 where there is none."""
    last = np.full(len(program), -1, dtype=np.int64)
    for stream in range(len(program.stream_ids)):
        instructions = np.flatnonzero((program.stream == stream) & (program.kind != Opcode.HOST_WAIT))
        calls = np.where(program.kind[instructions] == Opcode.CALL, instructions, -1)
        if len(instructions):
            last[instructions] = np.maximum.accumulate(calls)
    return last
