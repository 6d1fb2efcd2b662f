"""Order: what a rank did before or after what another one did, for certain.

Two ranks are in step only where they meet: whoever leaves a collective knows that all members have entered it, and so
that all they did before is done.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from sandtable.trace import ScriptEvent, Trace

__all__ = ["Meetings"]

_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})


class Meetings:
    """The collectives of all captured ranks, and which moments they put in order."""

    def __init__(self, trace: Trace) -> None:
        self._observations = trace.observations

    @cached_property
    def _meetings(self) -> list[dict[int, int]]:
        """The row at which each member entered, per collective."""
        entered: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
        for rank, observed in self._observations.items():
            counts: dict[tuple[object, ...], int] = defaultdict(int)
            for call in observed.calls:
                if call.op in _POINT_TO_POINT:
                    continue
                key = (call.group, call.number, call.op)
                entered[*key, counts[key]][rank] = call.row
                counts[key] += 1
        return [rows for rows in entered.values() if len(rows) > 1]

    def is_before(self, rank: int, event: ScriptEvent, other: int, later: ScriptEvent) -> bool:
        """Return whether `event` on `rank` is over when `later` begins on `other`."""
        reached = {rank: event.row}
        is_changing = True
        while is_changing:
            is_changing = False
            for rows in self._meetings:
                if not any(member in reached and reached[member] <= row for member, row in rows.items()):
                    continue
                for member, row in rows.items():
                    if row + 1 < reached.get(member, 1 << 62):
                        reached[member] = row + 1
                        is_changing = True
        return reached.get(other, 1 << 62) <= later.row

    def are_in_order(self, rank: int, event: ScriptEvent, other: int, event_there: ScriptEvent) -> bool:
        """Return whether one of two events is over before the other begins."""
        return self.is_before(rank, event, other, event_there) or self.is_before(other, event_there, rank, event)
