"""Stalls: explains who waits for whom when nothing moves any more.

The calls that never end are known of one rank per actor, and so of all ranks. A rank in a collective waits for the
members that are not in it; one in a message for the other side. Ranks that wait in a circle are named one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sandtable.engine.clock import StuckInstruction
from sandtable.engine.fold import Fold
from sandtable.engine.program import Opcode, Program
from sandtable.errors import SimulationError
from sandtable.findings import Evidence, Finding, Severity, name_ranks
from sandtable.trace.cycles import find_cycle
from sandtable.trace.kinds import P2P_OPS
from sandtable.trace.trace import Trace
from sandtable.trace.view import Collective

__all__ = ["STALL", "explain_stall"]

STALL = "stall"
"""The rule of a stall that nothing in the timeline explains."""

_MOST_RANKS = 256
"""Of a larger world the first ranks are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    """A rank, the call it never gets out of, and the ranks it waits for."""

    rank: int
    call: Collective
    missing: tuple[int, ...]

    @property
    def evidence(self) -> Evidence:
        call = self.call
        if call.op in P2P_OPS:
            text = f"{call.op} {'to' if call.op == 'send' else 'from'} rank {call.peer}"
        else:
            text = f"{call.op} number {call.seq} on {call.group.name} of {call.group.size} ranks"
        for_whom = f" for {name_ranks(self.missing)}" if self.missing else ""
        text = f"waits{for_whom} in {text}"
        return Evidence(ranks=(self.rank,), text=text, file=call.line.file, line=call.line.line)


def explain_stall(
    trace: Trace, programs: list[Program], fold: Fold, stuck: tuple[StuckInstruction, ...]
) -> SimulationError:
    """Return the error for a run that stalls: each rank that waits in a call, for whom, and on which line."""
    waits = _waits(trace, programs, fold, stuck)
    cycle = find_cycle({rank: wait.missing for rank, wait in waits.items()})
    if cycle:
        return _error(
            "deadlock-cycle",
            f"ranks must not wait for each other in a circle, but the run stalls because {len(cycle)} do",
            [waits[rank].evidence for rank in cycle],
            "have all ranks issue the calls of all groups in one order; exchange messages in one batch_isend_irecv, or "
            "have one of two ranks receive first: a send of NCCL may last until it is received",
        )
    never = [wait for wait in waits.values() if any(rank not in waits for rank in wait.missing)]
    if never:
        is_message = all(wait.call.op in P2P_OPS for wait in never)
        return _error(
            "p2p-mismatch" if is_message else "missing-participant",
            "every call must be made by all its ranks, but the run stalls because some never make it",
            [wait.evidence for wait in never],
            "make every member issue the same calls in the same order, or capture more steps (--steps) if the script "
            "was stopped in the middle of one",
        )
    evidence = list(dict.fromkeys(wait.evidence for wait in waits.values())) or [
        Evidence(ranks=(int(fold.representatives[item.actor]),), text="waits for work that never ends")
        for item in stuck
    ]
    return _error(
        STALL,
        "all members must join every call, but the run stalls",
        evidence,
        "make every member issue the same calls in the same order, or capture more steps (--steps) if the script was "
        "stopped in the middle of one",
    )


def _error(rule: str, message: str, evidence: Sequence[Evidence], remedy: str) -> SimulationError:
    return SimulationError(
        Finding(
            rule=rule,
            severity=Severity.ERROR,
            message=message,
            ranks=tuple(dict.fromkeys(rank for item in evidence for rank in item.ranks)),
            evidence=tuple(evidence),
            remedy=remedy,
        )
    )


def _waits(
    trace: Trace, programs: list[Program], fold: Fold, stuck: tuple[StuckInstruction, ...]
) -> Mapping[int, _Wait]:
    """Return what each rank waits in: the first of its actor's calls that never end."""
    first: dict[int, int] = {}
    for item in stuck:
        if programs[item.actor].kind[item.instruction] == Opcode.CALL:
            first[item.actor] = min(item.instruction, first.get(item.actor, item.instruction))
    calls: dict[int, Collective] = {}
    for rank in range(min(trace.world_size, _MOST_RANKS)):
        actor = int(fold.actor_of_rank[rank])
        if actor in first:
            record = int(programs[actor].first_record[first[actor]])
            calls[rank] = next(trace.rank(rank).collectives(slice(record, None)))
    return {rank: _Wait(rank, call, tuple(_missing(rank, call, calls))) for rank, call in calls.items()}


def _missing(rank: int, call: Collective, calls: Mapping[int, Collective]) -> Iterator[int]:
    if call.op in P2P_OPS:
        if call.peer is not None:
            yield call.peer
        return
    for member in np.asarray(call.group.ranks).tolist():
        other = calls.get(member)
        is_there = other is not None and other.group.ranks == call.group.ranks and other.seq == call.seq
        if member != rank and not is_there:
            yield member
