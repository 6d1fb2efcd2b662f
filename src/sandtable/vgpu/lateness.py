"""Lateness: members of a group that come to a collective so late that the others would have given up.

A process group gives up after its timeout. Between two collectives of a group, hosts begin together; one that works or
sleeps longer than another by more than the timeout is too late.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sandtable.findings import Evidence, Finding, Severity
from sandtable.units import format_seconds
from sandtable.vgpu.call_logs import describe_call
from sandtable.vgpu.host_clock import HostTime
from sandtable.vgpu.protocol import Call

__all__ = ["COLLECTIVE_TIMEOUT", "Lateness"]

COLLECTIVE_TIMEOUT = "collective-timeout"


@dataclass(frozen=True, slots=True)
class _Arrival:
    rank: int
    call: Call
    seconds: float
    slept: float
    time: HostTime


@dataclass(slots=True)
class Lateness:
    """Holds against each other how long ranks took to come to each collective."""

    findings: list[Finding] = field(default_factory=list)
    _last: dict[tuple[int, int], HostTime] = field(default_factory=dict)
    """By rank and group, when it came to the last call."""
    _arrivals: dict[tuple[int, int], list[_Arrival]] = field(default_factory=dict)
    _reported: set[tuple[str, int]] = field(default_factory=set)

    def arrive(self, rank: int, entry: int, call: Call, time: HostTime, timeout_seconds: float) -> None:
        """Note that a rank comes to a collective of group `entry` at `time` of its own clock."""
        before = self._last.get((rank, entry), HostTime())
        self._last[rank, entry] = time
        slept = time.slept - before.slept
        arrival = _Arrival(rank, call, time.worked - before.worked + slept, slept, time)
        arrivals = self._arrivals.setdefault((entry, call.seq), [])
        arrivals.append(arrival)
        first, last = (pick(arrivals, key=lambda one: one.seconds) for pick in (min, max))
        if timeout_seconds > 0 and last.seconds - first.seconds > timeout_seconds:
            place = last.call.file, last.call.line
            if place not in self._reported:
                self._reported.add(place)
                self.findings.append(_finding(first, last, timeout_seconds))


def _finding(first: _Arrival, last: _Arrival, timeout_seconds: float) -> Finding:
    late = last.seconds - first.seconds
    is_certain = last.slept - first.slept > timeout_seconds
    return Finding(
        rule=COLLECTIVE_TIMEOUT,
        severity=Severity.ERROR if is_certain else Severity.WARNING,
        message=f"all ranks must come to a call within the timeout of its group ({format_seconds(timeout_seconds)}), "
        f"but rank {last.rank} comes {format_seconds(late)} later than rank {first.rank}",
        ranks=tuple(sorted((first.rank, last.rank))),
        evidence=tuple(_evidence(first, last)),
        remedy="do the slow work before init_process_group, or once and outside of training; or give the group a "
        "longer timeout: init_process_group(timeout=timedelta(hours=2))",
    )


def _evidence(first: _Arrival, last: _Arrival) -> Iterator[Evidence]:
    call = first.call
    yield Evidence(ranks=(first.rank,), text=f"waits in {describe_call(call)}", file=call.file, line=call.line)
    text = f"works on its host for {format_seconds(last.seconds - last.slept)} before {describe_call(last.call)}"
    if last.slept:
        yield Evidence(
            ranks=(last.rank,),
            text=f"sleeps for {format_seconds(last.slept)}",
            file=last.time.file,
            line=last.time.line,
        )
    yield Evidence(ranks=(last.rank,), text=text, file=last.call.file, line=last.call.line)
