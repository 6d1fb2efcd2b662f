"""Input: batches that take longer to make than a step takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import InputWait, Line, Trace
from sandtable.units import format_seconds

__all__ = ["input_bound"]

_LEAST_NS = 10_000_000
"""Less is within what this machine's other work makes of it."""

_LARGE_NS = 40_000_000
_LARGE = 0.25


def input_bound(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report data loaders that keep the training step waiting, by what their batches take on this machine."""
    if timeline is None:
        return
    by_place: dict[Line, dict[int, list[InputWait]]] = defaultdict(lambda: defaultdict(list))
    for rank, seen in trace.observations.items():
        for wait in seen.input_waits:
            if wait.num_workers == 0:
                by_place[wait.place][rank].append(wait)
    for place, waits in by_place.items():
        # The fastest rank shows what the work takes, the others what waiting for this machine adds.
        per_batch = min(median(wait.nanoseconds for wait in own) for own in waits.values())
        batches = min(_batches_per_step(own) for own in waits.values())
        waiting = per_batch * batches
        if waiting < max(_LEAST_NS, 0.1 * (timeline.step_ns + waiting)):
            continue
        is_large = waiting > max(_LARGE_NS, _LARGE * (timeline.step_ns + waiting))
        ranks = tuple(waits)
        yield Finding(
            rule="input-bound",
            severity=Severity.WARNING if is_large else Severity.NOTE,
            message="a batch should be ready when the step begins, but each one is made in the training process, which "
            f"takes {format_seconds(waiting / 1e9)} per step on this machine, beside a step of "
            f"{format_seconds(timeline.step_ns / 1e9)} on {timeline.cluster.name}",
            ranks=ranks,
            evidence=(at_line(ranks, f"waits {format_seconds(per_batch / 1e9)} for a batch (num_workers=0)", place),),
            remedy="make batches in workers, DataLoader(..., num_workers=4, pin_memory=True, persistent_workers=True), "
            "or prepare the data once and store it",
        )


def _batches_per_step(waits: list[InputWait]) -> float:
    steps = {wait.step for wait in waits}
    return len(waits) / max(len(steps), 1)
