"""Checkpoints: a file must be complete before another rank reads it, and only one rank may write it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sandtable.check.order import Meetings
from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, ScriptEvent, Trace

__all__ = ["checkpoint_read_too_early", "checkpoint_written_by_all"]


def checkpoint_read_too_early(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report files that one rank reads, and another one writes, with nothing that makes either wait."""
    meetings = Meetings(trace)
    writes = _by_path(trace, EventKind.WRITE)
    reads = _by_path(trace, EventKind.READ)
    for path, writers in writes.items():
        early: list[int] = []
        pair: tuple[int, ScriptEvent, ScriptEvent] | None = None
        for writer, write in writers:
            for reader, read in reads.get(path, ()):
                has_own = any(rank == reader for rank, _ in writers)
                if has_own or reader in early or meetings.are_in_order(writer, write, reader, read):
                    continue
                early.append(reader)
                pair = pair or (writer, write, read)
        if pair is not None:
            writer, write, read = pair
            yield Finding(
                rule="checkpoint-read-too-early",
                severity=Severity.ERROR,
                message=f"a file must be complete before another rank reads it, but nothing makes the readers of "
                f"{Path(path).name} wait for its writer",
                ranks=tuple(sorted({writer, *early})),
                evidence=(at_line((writer,), "writes it", write.place), at_line(tuple(early), "reads it", read.place)),
                remedy="call torch.distributed.barrier() on all ranks after the file has been written",
            )


def checkpoint_written_by_all(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report checkpoints that several ranks of one node write at the same time."""
    saves = _by_path(trace, EventKind.SAVE)
    yield from _written_together(trace, saves, "saves to the same path", Severity.WARNING)
    # What a rank writes anew, and not with torch, may be the same on all of them.
    writes = {
        path: [row for row in rows if row[1].facts["truncates"]]
        for path, rows in _by_path(trace, EventKind.WRITE).items()
    }
    others = {path: rows for path, rows in writes.items() if path not in saves}
    yield from _written_together(trace, others, "writes the same file anew", Severity.NOTE)


def _written_together(
    trace: Trace, saves: Mapping[str, Sequence[tuple[int, ScriptEvent]]], text: str, severity: Severity
) -> Iterator[Finding]:
    meetings = Meetings(trace)
    for path, rows in saves.items():
        first: dict[int, ScriptEvent] = {}
        for rank, save in rows:
            first.setdefault(rank, save)
        for node in {rank // trace.gpus_per_node for rank in first}:
            together = [rank for rank in first if rank // trace.gpus_per_node == node]
            clashing = [
                rank
                for rank in together[1:]
                if not meetings.are_in_order(together[0], first[together[0]], rank, first[rank])
            ]
            if clashing:
                ranks = (together[0], *clashing)
                yield Finding(
                    rule="checkpoint-written-by-all",
                    severity=severity,
                    message=f"one rank must write a file, but several of a node write {Path(path).name} at the same "
                    "time, and may leave a mixture of theirs",
                    ranks=ranks,
                    evidence=(at_line(ranks, text, first[ranks[0]].place),),
                    remedy="save on one rank (if dist.get_rank() == 0: ...), or give each rank a path of its own",
                )
                break


def _by_path(trace: Trace, kind: EventKind) -> dict[str, list[tuple[int, ScriptEvent]]]:
    events: dict[str, list[tuple[int, ScriptEvent]]] = defaultdict(list)
    for rank, observed in sorted(trace.observations.items()):
        for event in observed.of_kind(kind):
            events[event.facts["path"]].append((rank, event))
    return events
