"""Stalls: explains who waits for whom when nothing moves any more."""

from sandtable.engine.clock import StuckInstruction
from sandtable.engine.program import Opcode, Program
from sandtable.errors import SimulationError
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace.kinds import P2P_OPS
from sandtable.trace.trace import Trace

__all__ = ["explain_stall"]


def explain_stall(
    trace: Trace, programs: list[Program], representatives: list[int], stuck: tuple[StuckInstruction, ...]
) -> SimulationError:
    """Return the error for a run that stalls: each rank that waits in a call, for what, and on which line."""
    calls = [
        _waiting_in_call(trace, programs[instruction.actor], representatives[instruction.actor], instruction)
        for instruction in stuck
    ]
    evidence = list(dict.fromkeys(call for call in calls if call is not None)) or [
        Evidence(ranks=(representatives[instruction.actor],), text="waits for work that never ends")
        for instruction in stuck
    ]
    return SimulationError(
        Finding(
            rule="stall",
            severity=Severity.ERROR,
            message="all members must join every call, but the run stalls",
            ranks=tuple(rank for item in evidence for rank in item.ranks),
            evidence=tuple(evidence),
            remedy="make every member issue the same calls in the same order, or capture more steps (--steps) if the "
            "script was stopped in the middle of one",
        )
    )


def _waiting_in_call(trace: Trace, program: Program, rank: int, stuck: StuckInstruction) -> Evidence | None:
    if program.kind[stuck.instruction] != Opcode.CALL:
        return None
    call = next(trace.rank(rank).collectives(slice(int(program.first_record[stuck.instruction]), None)))
    with_whom = f"with rank {call.peer}" if call.op in P2P_OPS else f"of {call.group.size} ranks"
    return Evidence(
        ranks=(rank,),
        text=f"waits in {call.op} number {call.seq} on {call.group.name} {with_whom}",
        file=call.line.file,
        line=call.line.line,
    )
