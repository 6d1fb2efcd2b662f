"""Deadlocks: ranks that wait for others that never come, as findings.

Each waiting rank points at the ranks it waits for. Where these have ended, a participant is missing, or a message;
where they all wait themselves, some of them wait for each other in a circle, which is named whole.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace.cycles import find_cycle
from sandtable.vgpu.call_logs import P2P_MISMATCH, CallTable, MeetingError, Waiting, describe_call, group_name
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.mismatches import extra_calls

__all__ = ["DEADLOCK_CYCLE", "MISSING_PARTICIPANT", "deadlock", "find_missing"]

DEADLOCK_CYCLE = "deadlock-cycle"
MISSING_PARTICIPANT = "missing-participant"

_REMEDIES = {
    DEADLOCK_CYCLE: "have all ranks issue the calls of all groups in one order; exchange messages in one "
    "batch_isend_irecv, or have one of two ranks receive first",
    MISSING_PARTICIPANT: "have every rank of the group make the call: move it out of branches and loops that only some "
    "ranks take, or make a group of those that do",
    P2P_MISMATCH: "match every receive with one send of its peer, with the same group, tag, type and size",
}


def deadlock(waits: Sequence[Waiting], table: CallTable | None = None) -> MeetingError:
    """Return the error for ranks that wait forever for each other, or for ranks that have ended."""
    in_vain = [wait for wait in waits if wait.ended]
    if in_vain:
        is_message = all(wait.call.peer >= 0 for wait in in_vain)
        rule = P2P_MISMATCH if is_message else MISSING_PARTICIPANT
        what = (
            "every receive must have its send, but a rank waits for a message that is never sent"
            if is_message
            else "every rank of a group must make the same calls, but some have ended without a call that others are in"
        )
        return _error(rule, what, in_vain, [*_first_extra(in_vain, table), *_waits(in_vain), *_ends(in_vain, table)])
    cycle = find_cycle({wait.rank: wait.missing for wait in waits})
    by_rank = {wait.rank: wait for wait in waits}
    if cycle:
        ring = [by_rank[rank] for rank in cycle]
        what = f"ranks must not wait for each other in a circle, but {len(ring)} do, so none can go on"
        around = [
            Evidence(ranks=(wait.rank,), text=f"waits {wait.text}", file=wait.call.file, line=wait.call.line)
            for wait in ring
        ]
        return _error(DEADLOCK_CYCLE, what, ring, around)
    what = "every rank of a group must make the same calls in the same order, but no rank can go on"
    return _error(MISSING_PARTICIPANT, what, waits, [*_first_extra(waits, table), *_waits(waits)])


def find_missing(registry: GroupRegistry, table: CallTable, *, ended: Collection[int]) -> MeetingError | None:
    """Return the first collective that a rank which `ended` did not make, and another member did.

    Large tensors carry no values in a rehearsal, so nobody waited for it.
    """
    waits: list[tuple[int, Waiting]] = []
    for entry in np.unique(table.entry).tolist():
        here = table.entry == entry
        counts = {rank: int((here & (table.rank == rank)).sum()) for rank in np.unique(table.rank[here]).tolist()}
        counts |= {rank: 0 for rank in ended if rank not in counts and registry.position(entry, rank) is not None}
        fewest = min(((count, rank) for rank, count in counts.items() if rank in ended), default=None)
        longest = max(counts, key=lambda rank: counts[rank])
        if fewest is None or fewest[0] >= counts[longest]:
            continue
        number = fewest[0]
        missing = tuple(rank for rank, count in counts.items() if count == number and rank in ended)
        for rank in sorted(rank for rank, count in counts.items() if count > number):
            index = np.flatnonzero(here & (table.rank == rank))[number]
            name = group_name(registry, entry)
            wait = Waiting(
                rank=rank, call=table.call(int(index)), group=name, missing=missing, ended=missing, entry=entry
            )
            waits.append((int(table.row[index]), wait))
    if not waits:
        return None
    entry = min(waits, key=lambda item: item[0])[1].entry
    return deadlock([wait for _, wait in waits if wait.entry == entry], table)


def _error(rule: str, what: str, waits: Sequence[Waiting], evidence: Sequence[Evidence]) -> MeetingError:
    ranks = {wait.rank for wait in waits} | {rank for wait in waits for rank in wait.ended}
    return MeetingError(
        Finding(
            rule=rule,
            severity=Severity.ERROR,
            message=what,
            ranks=tuple(sorted(ranks)),
            evidence=tuple(evidence),
            remedy=_REMEDIES[rule],
        ),
        waits[0].entry if waits else 0,
        [*((wait.rank, wait.call) for wait in waits), *((rank, None) for wait in waits for rank in wait.ended)],
    )


def _waits(waits: Sequence[Waiting]) -> Iterator[Evidence]:
    ranks_of: dict[tuple[str, str, int], list[int]] = {}
    for wait in waits:
        ranks_of.setdefault((wait.text, wait.call.file, wait.call.line), []).append(wait.rank)
    for (text, file, line), ranks in ranks_of.items():
        verb = "wait" if len(ranks) > 1 else "waits"
        yield Evidence(ranks=tuple(ranks), text=f"{verb} {text}", file=file, line=line)


def _ends(waits: Sequence[Waiting], table: CallTable | None) -> Iterator[Evidence]:
    """Yield the last call of ranks that have ended."""
    if table is None:
        return
    ended = sorted({(rank, wait.entry) for wait in waits for rank in wait.ended})
    for rank, entry in ended:
        calls = table.of_rank(rank, entry)
        if calls:
            last = calls[-1]
            text = f"ended; its last call of the group was {describe_call(last)}, call {last.seq}"
            yield Evidence(ranks=(rank,), text=text, file=last.file, line=last.line)


def _first_extra(waits: Sequence[Waiting], table: CallTable | None) -> tuple[Evidence, ...]:
    """Return the first call that a rank which waits has made, and one it waits for has not."""
    for wait in waits:
        if table is None or wait.call.peer >= 0 or not wait.missing:
            continue
        absent = (wait.ended or wait.missing)[0]
        never = wait.call._replace(op="", seq=wait.call.seq)
        found = extra_calls(table, wait.entry, [(wait.rank, wait.call), (absent, never)])
        if found:
            return found
    return ()
