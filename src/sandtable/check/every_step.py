"""Every step: what belongs between steps, or at the start, and is done in each of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from sandtable.check.cost import cost_text, saved_without, severity_of
from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import Collective, EventKind, Kind, Line, Phase, RankClass, ScriptEvent, SyncKind, Trace
from sandtable.units import format_bytes

__all__ = ["barrier_in_loop", "checkpoint_in_loop", "needless_broadcast", "weights_gathered_in_loop"]

_WORTH_A_WORD = 0.01
_LARGE_BYTES = 1 << 20
_FEWEST_STEPS = 3
_MOST_LINES = 4
_DDP = "DistributedDataParallel"

_Chosen = dict[int, list[Collective]]
"""Collectives of the first rank of each class."""


def barrier_in_loop(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report barriers in every step."""
    chosen = _repeated(trace, lambda _, call: call.op == "barrier")
    if timeline is None or not chosen:
        return
    saved = _saved(trace, timeline, chosen, syncs=(SyncKind.STREAM, SyncKind.DEVICE, SyncKind.EVENT))
    yield Finding(
        rule="barrier-in-loop",
        severity=severity_of(timeline, saved),
        message="a training step needs no barrier, because its collectives make ranks wait where they must, but each "
        f"step has one; without it the host could issue work ahead, which would save {cost_text(timeline, saved)}",
        ranks=_ranks(trace, chosen),
        evidence=tuple(_evidence(trace, timeline, chosen, "calls barrier")),
        remedy="remove the barrier, or call it only where ranks must wait, such as around a checkpoint",
    )


def needless_broadcast(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report buffers that DDP broadcasts in each forward pass, if they are large and that takes time."""
    wraps = {rank: _wrapped(trace, rank) for rank in (row.representative for row in trace.classes)}
    chosen = _repeated(
        trace, lambda rank, call: call.op == "broadcast" and call.phase is Phase.FORWARD and bool(wraps[rank])
    )
    if timeline is None or not chosen:
        return
    num_bytes = max(_bytes_per_step(trace, timeline, rank, calls) for rank, calls in chosen.items())
    saved = _saved(trace, timeline, chosen) if num_bytes >= _LARGE_BYTES else 0
    if saved < _WORTH_A_WORD * timeline.step_ns:
        return
    ranks = _ranks(trace, chosen)
    yield Finding(
        rule="needless-broadcast",
        severity=severity_of(timeline, saved),
        message=f"buffers that all ranks hold alike need not be sent, but {format_bytes(num_bytes)} are broadcast "
        f"before each forward pass, which takes {cost_text(timeline, saved)}",
        ranks=ranks,
        evidence=(
            *_evidence(trace, timeline, chosen, "broadcasts buffers"),
            *(at_line(ranks, "wraps the model", event.place) for event in wraps[ranks[0]]),
        ),
        remedy="wrap with DistributedDataParallel(..., broadcast_buffers=False), or keep what never changes in a plain "
        "attribute; statistics of batch norm are small, and SyncBatchNorm keeps them equal",
    )


def weights_gathered_in_loop(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report sharded weights that every step puts together whole."""
    places = {rank: _places_in_every_step(trace, rank, EventKind.GATHER) for rank in trace.observations}
    chosen = _repeated(trace, lambda rank, call: call.op == "all_gather" and call.line in places.get(rank, ()))
    if timeline is None or not chosen:
        return
    num_bytes = max(_bytes_per_step(trace, timeline, rank, calls) for rank, calls in chosen.items())
    saved = _saved(trace, timeline, chosen) if num_bytes >= _LARGE_BYTES else 0
    if saved < _WORTH_A_WORD * timeline.step_ns:
        return
    yield Finding(
        rule="weights-gathered-in-loop",
        severity=Severity.NOTE,
        message="sharded tensors should be put together only where they are needed whole, but each step gathers "
        f"{format_bytes(num_bytes)} for the script, which takes {cost_text(timeline, saved)}",
        ranks=_ranks(trace, chosen),
        evidence=tuple(_evidence(trace, timeline, chosen, "gathers whole tensors")),
        remedy="compute on the shards and reduce the results: norms of to_local() and one all_reduce of their squares; "
        "or do it every so many steps",
    )


def checkpoint_in_loop(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report checkpoints that are saved in every step."""
    for rank, seen in sorted(trace.observations.items()):
        places = _places_in_every_step(trace, rank, EventKind.SAVE)
        if timeline is None or not places or len(trace.rank(rank).step_slices()) < _FEWEST_STEPS:
            continue
        saved = saved_without(timeline, partial(_copies_at, trace, places), at_most=0)
        size = max((event.facts.get("num_bytes", 0) for event in seen.of_kind(EventKind.SAVE)), default=0)
        yield Finding(
            rule="checkpoint-in-loop",
            severity=severity_of(timeline, saved),
            message="a checkpoint should be saved every so many steps, but each of the "
            f"{len(trace.rank(rank).step_slices())} captured steps saves one; to copy it to the host takes "
            f"{cost_text(timeline, saved)}, and then {format_bytes(size)} are written",
            ranks=(rank,),
            evidence=tuple(at_line((rank,), "saves a checkpoint in every step", place) for place in places),
            remedy="save every so many steps or minutes, by what a restart may cost; or save in the background with "
            "torch.distributed.checkpoint.async_save",
        )
        return


def _repeated(trace: Trace, is_meant: Callable[[int, Collective], bool]) -> _Chosen:
    """Return the calls that are meant, at lines that have one in each step after the first, for ranks that have any."""
    chosen: _Chosen = {}
    for row in trace.classes:
        view = trace.rank(row.representative)
        steps = [
            [call for call in view.collectives(span) if len(call.group.ranks) > 1 and is_meant(view.rank, call)]
            for span in view.step_slices()[1:]
        ]
        lines = set.intersection(*({call.line for call in calls} for calls in steps)) if steps else set()
        calls = [call for own in steps for call in own if call.line in lines and call.line.file]
        if calls:
            chosen[view.rank] = calls
    return chosen


def _saved(trace: Trace, timeline: Timeline, chosen: _Chosen, *, syncs: tuple[SyncKind, ...] = ()) -> float:
    """Return how many nanoseconds a step takes less without these calls, their waits, and the host's at their lines."""

    def is_removed(row: RankClass) -> npt.NDArray[np.bool_]:
        records = trace.rank(row.representative).records
        removed = np.zeros(len(records), dtype=np.bool_)
        calls = chosen.get(row.representative, [])
        removed[[call.index for call in calls]] = True
        removed |= (records.kind == Kind.WAIT) & np.isin(records.ref, [call.row for call in calls])
        lines = np.unique(records.line[[call.index for call in calls]])
        is_sync = (records.kind == Kind.HOST_SYNC) & np.isin(records.value, syncs)
        removed |= is_sync & np.isin(records.line, lines)
        return removed

    return saved_without(timeline, is_removed, at_most=0)


def _copies_at(trace: Trace, places: tuple[Line, ...], row: RankClass) -> npt.NDArray[np.bool_]:
    """Return which records of a class copy from the card, or wait for it, at these lines."""
    view = trace.rank(row.representative)
    records = view.records
    lines = [line for line in np.unique(records.line).tolist() if view.line(line) in places]
    is_copy = (records.kind == Kind.HOST_SYNC) | (records.kind == Kind.OPERATOR)
    return np.asarray(is_copy & np.isin(records.line, lines))


def _places_in_every_step(trace: Trace, rank: int, kind: EventKind) -> tuple[Line, ...]:
    """Return the lines at which the script does this in each step after the first."""
    ends = [span.stop for span in trace.rank(rank).step_slices()]
    steps: dict[Line, set[int]] = defaultdict(set)
    for event in trace.observations[rank].of_kind(kind):
        steps[event.place].add(bisect_left(ends, event.row))
    # What follows the update belongs to the next step, so the last may not have come to it.
    needed = set(range(1, len(ends)))
    return tuple(place for place, found in steps.items() if len(ends) > 1 and needed <= found and place.file)


def _wrapped(trace: Trace, rank: int) -> list[ScriptEvent]:
    seen = trace.observations.get(rank)
    events = seen.of_kind(EventKind.WRAPPED) if seen is not None else ()
    return [event for event in events if event.facts.get("wrapper") == _DDP]


def _bytes_per_step(trace: Trace, timeline: Timeline, rank: int, calls: list[Collective]) -> int:
    span = trace.rank(rank).step_slice(timeline.step_number)
    return sum(max(call.bytes_in, call.bytes_out) for call in calls if span.start <= call.index < span.stop)


def _ranks(trace: Trace, chosen: _Chosen) -> tuple[int, ...]:
    return tuple(sorted(rank for one in chosen for rank in trace.class_of(one).ranks))


def _evidence(trace: Trace, timeline: Timeline, chosen: _Chosen, text: str) -> Iterator[Evidence]:
    counts: Counter[Line] = Counter()
    ranks: dict[Line, list[int]] = defaultdict(list)
    for rank, calls in chosen.items():
        span = trace.rank(rank).step_slice(timeline.step_number)
        own = Counter(call.line for call in calls if span.start <= call.index < span.stop)
        counts |= own
        for place in own:
            ranks[place] += trace.class_of(rank).ranks
    for place, count in counts.most_common(_MOST_LINES):
        times = "once" if count == 1 else f"{count} times"
        yield at_line(sorted(ranks[place]), f"{text} {times} per step", place)
