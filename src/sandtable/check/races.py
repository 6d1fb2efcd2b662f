"""Races: kernels on different streams, or a copy and the host, that touch the same memory in no order.

They are found from the order of streams, events and waits, as a race detector finds those of threads, so they are there
whatever the timing of one run is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import EventKind, Line, Race, RaceKind, Trace

__all__ = [
    "memory_reused_early",
    "overwritten_while_sent",
    "read_before_copied",
    "stream_race",
    "unawaited_collective",
]

_SENT_WEIGHTS = "aten::copy_"
"""With this DDP fills weights while it is made, on a side stream if it is made there, as CUDA graphs need it and
Lightning always does. The script makes its first batch afterwards, which takes longer."""

_OF_THE_HOST = (RaceKind.HOST_READ, RaceKind.HOST_WRITE)


def unawaited_collective(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report results of asynchronous collectives that are used before anyone waited for them."""
    for race, ranks in _races(trace):
        if race.is_earlier_call and race.kind is RaceKind.READ_AFTER_WRITE:
            yield Finding(
                rule="unawaited-collective",
                severity=Severity.ERROR,
                message=f"the result of an asynchronous call must be awaited before it is used, but {race.later} reads "
                f"what {race.earlier} may still be writing",
                ranks=ranks,
                evidence=_evidence(race, ranks),
                remedy="call wait() on the work that the collective returns before the first use, on the stream that "
                "uses the tensor",
            )


def overwritten_while_sent(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report buffers that are written while a collective, a message or a copy may still read or write them."""
    for race, ranks in _races(trace):
        if race.kind is RaceKind.HOST_WRITE:
            yield Finding(
                rule="overwritten-while-sent",
                severity=Severity.ERROR,
                message="pinned memory must stay as it is until the copy that uses it is over, but the host writes to "
                "it and has not waited for the copy",
                ranks=ranks,
                evidence=_host_evidence(race, ranks),
                remedy="record an event after the copy and call event.synchronize() before the buffer is filled again, "
                "or pin a new tensor for each batch, as DataLoader(pin_memory=True) does",
            )
        elif race.is_earlier_call and race.kind in (RaceKind.WRITE_AFTER_READ, RaceKind.WRITE_AFTER_WRITE):
            yield Finding(
                rule="overwritten-while-sent",
                severity=Severity.ERROR,
                message=f"a buffer must stay as it is until the call that uses it is over, but {race.later} writes to "
                f"one while {race.earlier} may still be under way",
                ranks=ranks,
                evidence=_evidence(race, ranks),
                remedy="call wait() on the work before the buffer is written again, or use two buffers in turn",
            )


def read_before_copied(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report numbers that the host reads while a copy from the card may still be writing them."""
    for race, ranks in _races(trace):
        if race.kind is RaceKind.HOST_READ:
            yield Finding(
                rule="read-before-copied",
                severity=Severity.ERROR,
                message="a copy to the host with non_blocking=True is not over when the call returns, but the host "
                "reads what it may still be writing",
                ranks=ranks,
                evidence=_host_evidence(race, ranks),
                remedy="wait before the numbers are read: record an event after the copy and call event.synchronize(), "
                "or leave non_blocking=True out (tensor.cpu())",
            )


def stream_race(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report tensors that two streams use without an order between them."""
    for race, ranks in _races(trace):
        is_of_streams = race.kind not in (RaceKind.REUSED, *_OF_THE_HOST)
        if is_of_streams and not race.is_earlier_call and not _is_of_wrapping(trace, race, ranks[0]):
            yield Finding(
                rule="stream-race",
                severity=Severity.ERROR,
                message=f"streams that share a tensor must be ordered, but {race.later} on stream {race.later_stream} "
                f"{_verb(race)} what {race.earlier} on stream {race.earlier_stream} {_earlier_verb(race)}",
                ranks=ranks,
                evidence=_evidence(race, ranks),
                remedy="let the later stream wait: stream.wait_stream(other), or event.record() and event.wait(), "
                "between the two",
            )


def memory_reused_early(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report tensors that were freed while another stream might still use them, and whose memory was taken since."""
    for race, ranks in _races(trace):
        if race.kind is RaceKind.REUSED:
            yield Finding(
                rule="memory-reused-early",
                severity=Severity.ERROR,
                message="memory must not be used again while a kernel may still use it, but a tensor was freed while "
                f"{race.earlier} on stream {race.earlier_stream} was under way, and its memory was handed out again",
                ranks=ranks,
                evidence=_evidence(race, ranks),
                remedy="call tensor.record_stream(stream) for each stream that uses a tensor made on another one, or "
                "keep the tensor until the streams have been joined",
            )


def _races(trace: Trace) -> Iterator[tuple[Race, tuple[int, ...]]]:
    """Yield each race once, with the captured ranks that have it."""
    found: dict[tuple[Line, Line], dict[int, Race]] = defaultdict(dict)
    for rank, observed in sorted(trace.observations.items()):
        wrapped = {event.place for event in observed.of_kind(EventKind.WRAPPED)}
        for race in observed.races:
            if not (race.earlier_place in wrapped and race.earlier == _SENT_WEIGHTS):
                found[race.earlier_place, race.later_place].setdefault(rank, race)
    for races in found.values():
        yield next(iter(races.values())), tuple(races)


def _is_of_wrapping(trace: Trace, race: Race, rank: int) -> bool:
    """Return whether the earlier kernel is a copy of the weights that DDP broadcasts when it is made.

    Lightning makes DDP on a stream of its own, which nobody waits for. The first forward pass comes long after, and no
    line of the script could change it.
    """
    place = race.earlier_place
    wrapped = trace.observations[rank].of_kind(EventKind.WRAPPED)
    return race.earlier.endswith("copy_") and any(
        (event.place.file, event.place.line) == (place.file, place.line) for event in wrapped
    )


def _evidence(race: Race, ranks: Iterable[int]) -> tuple[Evidence, ...]:
    ranks = tuple(ranks)
    return (
        at_line(ranks, f"issues {race.earlier} on stream {race.earlier_stream}", race.earlier_place),
        at_line(ranks, f"issues {race.later} on stream {race.later_stream}", race.later_place)
        if race.kind is not RaceKind.REUSED
        else at_line(ranks, "takes the memory again", race.later_place),
    )


def _host_evidence(race: Race, ranks: Iterable[int]) -> tuple[Evidence, ...]:
    ranks = tuple(ranks)
    verb = "reads" if race.kind is RaceKind.HOST_READ else "writes"
    return (
        at_line(ranks, f"starts a copy on stream {race.earlier_stream}", race.earlier_place),
        at_line(ranks, f"{verb} the memory on the host ({race.later})", race.later_place),
    )


def _verb(race: Race) -> str:
    return "reads" if race.kind is RaceKind.READ_AFTER_WRITE else "writes"


def _earlier_verb(race: Race) -> str:
    return "reads" if race.kind is RaceKind.WRITE_AFTER_READ else "writes"
