"""The clock: passes programs to the C++ event clock, and its results back.

csrc/clock.cpp explains the algorithm. The library is plain C++ without torch; it is compiled once, in seconds.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.engine.network.transfer import Transfer
from sandtable.engine.program import Program
from sandtable.native import load_compiled

__all__ = ["ActorSpeed", "StuckInstruction", "Times", "Wiring", "load_clock", "run_clock"]

I64 = npt.NDArray[np.int64]

_SOURCE = Path(__file__).parent / "csrc" / "clock.cpp"
_FLAGS = ("-std=c++20", "-O2", "-w")
_MAX_STUCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Channels and transfers, and for each actor which of its edges and patterns lead to which."""

    slots: npt.NDArray[np.int32]
    """How many arrivals each channel waits for."""
    transfers: tuple[Transfer, ...]
    channel_of_edge: tuple[npt.NDArray[np.int32], ...]
    transfer_of_pattern: tuple[npt.NDArray[np.int32], ...]
    num_link_classes: int
    first_link: npt.NDArray[np.int32]
    """Where the link classes of each transfer begin in `links` and `loads`; one more entry marks the end."""
    links: npt.NDArray[np.int32]
    loads: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpeed:
    """How an actor deviates: its work takes `slowness` times as long, and varies by `jitter`."""

    slowness: float = 1.0
    jitter: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Times:
    """When each instruction of one actor started and ended; -1 for one that never did.

    `issue_ns` is when the host reached it, `meet_ns` when the last member of a call arrived.
    """

    issue_ns: I64
    start_ns: I64
    meet_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class StuckInstruction:
    """An instruction that never ended; stream -1 is the host."""

    actor: int
    stream: int
    instruction: int


def run_clock(
    programs: list[Program], wiring: Wiring, speeds: list[ActorSpeed]
) -> tuple[tuple[Times, ...], tuple[StuckInstruction, ...]]:
    """Run one program per actor (several may share one object) to the end, or until nothing moves."""
    distinct = list({id(program): program for program in programs}.values())
    number = {id(program): index for index, program in enumerate(distinct)}
    keep: list[Any] = []
    c_programs = (_Program * len(distinct))(*(_c_program(program, keep) for program in distinct))
    times = tuple(_empty_times(len(program)) for program in programs)
    c_actors = (_Actor * len(programs))(
        *(
            _c_actor(number[id(program)], times[index], speeds[index], wiring, index, keep)
            for index, program in enumerate(programs)
        )
    )
    network = _c_network(wiring, keep)
    stuck = (_Stuck * _MAX_STUCK)()
    count = load_clock().sandtable_clock(c_programs, c_actors, len(programs), ctypes.byref(network), stuck, _MAX_STUCK)
    stuck_instructions = tuple(
        StuckInstruction(s.actor, s.stream, s.instruction) for s in stuck[: min(count, _MAX_STUCK)]
    )
    return times, stuck_instructions


def _empty_times(length: int) -> Times:
    return Times(*(np.full(length, -1, dtype=np.int64) for _ in range(4)))


_PROGRAM_COLUMNS = (
    "kind", "is_copy", "stream", "arg", "count", "host_ns", "work_ns", "lag_ns", "lead_ns",
    "row_edge", "row_occurrence", "row_pattern",
)  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (
        ("num_instructions", ctypes.c_int64),
        ("num_streams", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in _PROGRAM_COLUMNS),
    )


class _Actor(ctypes.Structure):
    _fields_ = (
        ("program", ctypes.c_int32),
        ("slowness", ctypes.c_double),
        ("jitter", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("channel_of_edge", ctypes.c_void_p),
        ("transfer_of_pattern", ctypes.c_void_p),
        ("issue_ns", ctypes.c_void_p),
        ("start_ns", ctypes.c_void_p),
        ("meet_ns", ctypes.c_void_p),
        ("end_ns", ctypes.c_void_p),
    )


class _Transfer(ctypes.Structure):
    _fields_ = (
        ("latency_ns", ctypes.c_double),
        ("work_ns", ctypes.c_double),
        ("sm_share", ctypes.c_double),
        ("first_link", ctypes.c_int32),
        ("num_links", ctypes.c_int32),
    )


class _Network(ctypes.Structure):
    _fields_ = (
        ("num_links", ctypes.c_int32),
        ("num_channels", ctypes.c_int32),
        ("slots", ctypes.c_void_p),
        ("transfers", ctypes.c_void_p),
        ("links", ctypes.c_void_p),
        ("loads", ctypes.c_void_p),
    )


class _Stuck(ctypes.Structure):
    _fields_ = (("actor", ctypes.c_int32), ("stream", ctypes.c_int32), ("instruction", ctypes.c_int64))


def _c_program(program: Program, keep: list[Any]) -> _Program:
    columns = {name: _address(getattr(program, name), keep) for name in _PROGRAM_COLUMNS}
    return _Program(num_instructions=len(program), num_streams=len(program.stream_ids), **columns)


def _c_actor(program: int, times: Times, speed: ActorSpeed, wiring: Wiring, actor: int, keep: list[Any]) -> _Actor:
    return _Actor(
        program=program,
        slowness=speed.slowness,
        jitter=speed.jitter,
        seed=speed.seed,
        channel_of_edge=_address(wiring.channel_of_edge[actor], keep),
        transfer_of_pattern=_address(wiring.transfer_of_pattern[actor], keep),
        issue_ns=_address(times.issue_ns, keep),
        start_ns=_address(times.start_ns, keep),
        meet_ns=_address(times.meet_ns, keep),
        end_ns=_address(times.end_ns, keep),
    )


def _c_network(wiring: Wiring, keep: list[Any]) -> _Network:
    first = wiring.first_link.tolist()
    transfers = (_Transfer * max(len(wiring.transfers), 1))(
        *(
            _Transfer(
                transfer.latency_ns, transfer.work_ns, transfer.sm_share, first[index], first[index + 1] - first[index]
            )
            for index, transfer in enumerate(wiring.transfers)
        )
    )
    keep.append(transfers)
    return _Network(
        num_links=wiring.num_link_classes,
        num_channels=len(wiring.slots),
        slots=_address(wiring.slots, keep),
        transfers=ctypes.addressof(transfers),
        links=_address(wiring.links, keep),
        loads=_address(wiring.loads, keep),
    )


def _address(column: npt.NDArray[Any], keep: list[Any]) -> int:
    """Return the address of the column's numbers; `keep` holds on to it while C++ reads them."""
    if not column.flags.c_contiguous:
        column = np.ascontiguousarray(column)
    keep.append(column)
    return int(column.ctypes.data)


@cache
def load_clock() -> ctypes.CDLL:
    """Load the clock's library, building it first if necessary."""
    library = load_compiled("clock", _SOURCE, flags=_FLAGS)
    library.sandtable_clock.restype = ctypes.c_int64
    library.sandtable_clock.argtypes = (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
    )  # fmt: skip
    return library
