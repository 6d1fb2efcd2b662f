"""Step rows: the records of a capture with a row where each step ends, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.trace import Kind, Phase

__all__ = ["keep_steps"]

_SCRIPT_UPDATE = 0x80000000
"""From here on numbers are those of updates without an optimizer of torch's (csrc/updates.h)."""

Columns = dict[str, npt.NDArray[Any]]


def keep_steps(records: Columns, updater: int | None) -> Columns:
    """Keep the step rows of one updater, numbered from 1; what a script does to update parameters is optimizer work.

    A script that writes its parameters itself has left a row after each write, with the number of the backward pass
    before it as value: the last of them ends the update.
    """
    is_step = records["kind"] == Kind.STEP
    ends = np.flatnonzero(is_step & (records["ref"] == updater)) if updater is not None else np.zeros(0, np.int64)
    if updater is not None and updater >= _SCRIPT_UPDATE:
        passes = records["value"][ends]
        ends = ends[np.append(passes[1:] != passes[:-1], True)] if len(ends) else ends
        records = records | {"phase": _with_updates(records, np.flatnonzero(is_step))}
    records = records | {"ref": records["ref"].copy(), "value": records["value"].copy()}
    records["ref"][ends] = np.arange(1, len(ends) + 1)
    records["value"][ends] = 0
    kept = ~is_step
    kept[ends] = True
    return {name: column[kept] for name, column in records.items()}


def _with_updates(records: Columns, writes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the phases, with what lies between a backward pass and the last write after it as the optimizer's."""
    phase = records["phase"].copy()
    backward = np.flatnonzero(phase == Phase.BACKWARD)
    for end in writes[np.append(records["value"][writes[1:]] != records["value"][writes[:-1]], True)].tolist():
        before = int(np.searchsorted(backward, end))
        part = phase[int(backward[before - 1]) + 1 if before else 0 : end]
        part[part == Phase.FORWARD] = Phase.OPTIMIZER
    return phase
