"""Stalls: when nothing moves any more, who waits for whom, in words."""

from sandtable.engine.clock import Stuck
from sandtable.engine.program import Order, Program
from sandtable.errors import SimulationError
from sandtable.trace import P2P_OPS, Trace

__all__ = ["explain_stall"]

_MAX_LINES = 6


def explain_stall(
    trace: Trace, programs: list[Program], representatives: list[int], stuck: tuple[Stuck, ...]
) -> SimulationError:
    """The error for a run that cannot go on: each rank that waits in a call, for what, and where in the script."""
    lines = []
    for each in stuck:
        program, rank = programs[each.actor], representatives[each.actor]
        if program.kind[each.instruction] != Order.CALL:
            continue
        view = trace.rank(rank)
        call = next(view.collectives(slice(int(program.first_record[each.instruction]), None)))
        with_whom = f"with rank {call.peer}" if call.op in P2P_OPS else f"of {call.group.size} ranks"
        what = f"{call.op} number {call.seq} on {call.group.name} {with_whom}"
        lines.append(f"  rank {rank} waits in {what} ({call.line})")
    if not lines:
        lines = [f"  rank {representatives[each.actor]} waits for work that never ends" for each in stuck]
    more = [f"  and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    return SimulationError(
        "every call must be joined by all its members, but the run stands still:\n"
        + "\n".join([*dict.fromkeys(lines[:_MAX_LINES]), *more])
        + "\nmake every member issue the same calls in the same order, or capture more steps (--steps) if the script "
        "was stopped in the middle of one"
    )
