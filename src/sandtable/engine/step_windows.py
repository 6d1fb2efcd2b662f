"""Step windows: when each step of a run begins and ends, and which of them is typical.

A step lasts from the moment the slowest rank ended the one before to the moment the slowest ends this one. The first
has no such beginning, and it differs from the others (optimizer states are made, memory is reserved), so it counts only
where it is the only one: then it begins at the first matrix product, and everything before is set-up. More steps are
skipped where the user says so, because a script warms up in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.engine.clock import Times
from sandtable.engine.program import Program
from sandtable.errors import SimulationError
from sandtable.findings import Finding, Severity

__all__ = ["StepWindows", "step_windows"]

_ALIKE = 0.01
"""Steps whose durations differ by less than this share are equally typical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindows:
    """The steps that can be timed, in order; `first_number` is the number of the first of them, counted from 1."""

    first_number: int
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]

    @property
    def durations_ns(self) -> npt.NDArray[np.int64]:
        return self.end_ns - self.start_ns

    @property
    def median_ns(self) -> int:
        """The median; of two middle ones, the shorter."""
        return int(np.sort(self.durations_ns)[(len(self.end_ns) - 1) // 2])

    @property
    def typical(self) -> int:
        """The position of the last step that takes as long as the median."""
        differences = np.abs(self.durations_ns - self.median_ns)
        return int(np.flatnonzero(differences <= _ALIKE * self.median_ns)[-1])


def step_windows(programs: Sequence[Program], times: Sequence[Times], *, num_skipped: int = 1) -> StepWindows:
    """Return the windows of the steps that every rank made, leaving out ranks that made none.

    The first `num_skipped` steps are left out, but the last step never is.
    """
    ends = [own.end_ns[program.steps] for program, own in zip(programs, times, strict=True) if len(program.steps)]
    if not ends:
        raise _untimed("a run must end a step for its step time to be known, but this one ended none")
    fewest = min(map(len, ends))
    if fewest >= 2:
        last = np.max([own[:fewest] for own in ends], axis=0)
        skipped = min(max(num_skipped, 1), fewest - 1)
        return StepWindows(first_number=skipped + 1, start_ns=last[skipped - 1 : -1], end_ns=last[skipped:])
    firsts = [
        int(own.start_ns[program.first_work])
        for program, own in zip(programs, times, strict=True)
        if program.first_work < len(program) and own.start_ns[program.first_work] >= 0
    ]
    end = max(int(own[0]) for own in ends)
    if not firsts or end <= min(firsts):
        raise _untimed("a step must do some work for its time to be known, but none was recorded")
    return StepWindows(first_number=1, start_ns=np.array([min(firsts)]), end_ns=np.array([end]))


def _untimed(message: str) -> SimulationError:
    return SimulationError(
        Finding(
            rule="no-steps",
            severity=Severity.ERROR,
            message=message,
            ranks=(0,),
            remedy="let the script train on the GPU for at least one step, and mark its end with sandtable.step() "
            "if it is not recognized",
        )
    )
