"""Meetings: ranks that did not meet after the captured steps, or failed there for a reason that is known.

The capture compares collectives of the ranks that run. Where they disagree within the captured steps the run fails;
where they disagree or fail later, while the script is followed without records, the figures stand and the finding is
left as a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding
from sandtable.trace import Trace

__all__ = ["MEETING_RULES"]

_NAMES = (
    "collective-mismatch",
    "collective-timeout",
    "cuda-after-fork",
    "deadlock-cycle",
    "early-exit",
    "gradient-ready-twice",
    "group-mismatch",
    "missing-participant",
    "nested-launcher",
    "non-contiguous-tensor",
    "p2p-mismatch",
    "rank-raised",
    "unequal-batches",
    "unused-parameters",
    "world-size-not-divisible",
    "wrong-device-for-nccl",
    "wrong-device-index",
)


def _left_by_capture(name: str) -> Callable[[Trace, Timeline | None], Iterator[Finding]]:
    def rule(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
        return (Finding.from_json(note.text) for note in trace.notes if note.kind == name)

    return rule


MEETING_RULES = {name: _left_by_capture(name) for name in _NAMES}
