"""Progress: how far each captured rank got, which matters most when a run did not reach its end."""

from dataclasses import dataclass

import numpy as np

from sandtable.trace.kinds import P2P_OPS, Kind
from sandtable.trace.lines import Line
from sandtable.trace.trace import Trace
from sandtable.trace.view import Collective, RankView
from sandtable.units import format_bytes

__all__ = ["RankProgress", "progress_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """How far one captured rank got.

    `last_call` describes its last collective or point-to-point call, and is empty if it made none. `file` and `line`
    are the script line of that call, or without a call of the last record; `line` is 0 where no line is known.
    """

    rank: int
    num_steps: int
    num_operators: int
    last_call: str
    file: str
    line: int
    stop_reason: str


def progress_of(trace: Trace) -> tuple[RankProgress, ...]:
    """Return the progress of each class's representative, in the order of the classes."""
    return tuple(_progress(trace.rank(rank_class.representative)) for rank_class in trace.classes)


def _progress(view: RankView) -> RankProgress:
    captured, kinds = view.rank_class.records, view.records.kind
    calls = np.flatnonzero(kinds == Kind.COLLECTIVE)
    last = next(view.collectives(slice(int(calls[-1]), None))) if len(calls) else None
    line = last.line if last else _last_line(view)
    return RankProgress(
        rank=view.rank,
        num_steps=captured.num_steps,
        num_operators=int((kinds == Kind.OPERATOR).sum()),
        last_call=_describe(last) if last else "",
        file=line.file,
        line=line.line,
        stop_reason=captured.stop_reason,
    )


def _describe(call: Collective) -> str:
    """Return a call in words: `all_reduce of 4.00 MiB on mesh_tp (8 ranks)`, `send of 2.00 MiB to rank 3`."""
    size_bytes = max(call.bytes_in, call.bytes_out)
    text = f"{call.op} of {format_bytes(size_bytes)}" if size_bytes else call.op
    if call.op in P2P_OPS and call.peer is not None:
        return f"{text} {'to' if call.op == 'send' else 'from'} rank {call.peer}"
    name = call.group.name or "a group"
    return f"{text} on {name} ({call.group.size} {'rank' if call.group.size == 1 else 'ranks'})"


def _last_line(view: RankView) -> Line:
    known = np.flatnonzero(view.records.line > 0)
    return view.line(int(view.records.line[known[-1]])) if len(known) else Line()
