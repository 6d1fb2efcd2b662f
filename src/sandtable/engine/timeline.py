"""Timeline: when everything happened, and answers to questions about it.

The clock gives the start and the end of every instruction of every actor. The timeline looks at them through a
*window*: the typical step (see `step_windows.py`).
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sandtable.cluster.cluster import Cluster
from sandtable.cluster.topology import Topology
from sandtable.engine.breakdown import Breakdown, break_down
from sandtable.engine.clock import Times, Wiring
from sandtable.engine.columns import HostColumns, SpanColumns, host_columns, span_columns
from sandtable.engine.fold import Fold
from sandtable.engine.operator_table import BASES, OperatorTable
from sandtable.engine.program import Opcode, Program
from sandtable.engine.spans import RankExecution, Span, unroll
from sandtable.engine.step_windows import StepWindows, step_windows
from sandtable.trace.kinds import Kind, Phase
from sandtable.trace.trace import Trace
from sandtable.trace.view import RankClass
from sandtable.units import format_seconds

__all__ = ["Actor", "LinkLoads", "OperatorCounts", "Timeline", "Transaction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Ranks whose time is equal."""

    index: int
    representative: int
    ranks: tuple[int, ...]
    rank_class: RankClass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoads:
    """What each link of the topology carries in a step."""

    bytes_carried: npt.NDArray[np.float64]
    utilisation: npt.NDArray[np.float64]
    """Share of what the link could have carried in that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Calls of one kind and size that a rank makes in a step."""

    op: str
    axis: str
    size_bytes: int
    count: int
    algorithm: str
    protocol: str
    alone_ns: float
    """How long one call takes when all members are there and nothing else is on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCounts:
    """How often each signature ran in the step, by phase, as parallel columns."""

    signature: npt.NDArray[np.int64]
    phase: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]


class Timeline:
    """A simulated run. Made by `simulate`."""

    def __init__(
        self,
        *,
        trace: Trace,
        cluster: Cluster,
        topology: Topology,
        fold: Fold,
        programs: tuple[Program, ...],
        times: tuple[Times, ...],
        wiring: Wiring,
        tables: tuple[OperatorTable, ...],
    ) -> None:
        self.trace, self.cluster, self.topology = trace, cluster, topology
        self.programs, self.times, self.wiring, self.tables = programs, times, wiring, tables
        self._fold = fold

    def __repr__(self) -> str:
        step = format_seconds(self.step_ns / 1e9)
        return f"Timeline({self.trace.world_size} ranks as {len(self.programs)} actors, a step takes {step})"

    @cached_property
    def actors(self) -> tuple[Actor, ...]:
        return tuple(
            Actor(
                index=index,
                representative=int(rank),
                ranks=tuple(self._fold.ranks(index).tolist()),
                rank_class=self.trace.class_of(int(rank)),
            )
            for index, rank in enumerate(self._fold.representatives)
        )

    def actor_of(self, rank: int) -> Actor:
        """Return the actor that stands for `rank`."""
        self.trace.class_of(rank)  # checks the number
        return self.actors[int(self._fold.actor_of_rank[rank])]

    # ---- the window ----

    @property
    def step_ns(self) -> int:
        """The duration of the typical step."""
        return self.step_end_ns - self.step_start_ns

    @property
    def step_start_ns(self) -> int:
        return self._window[0]

    @property
    def step_end_ns(self) -> int:
        return self._window[1]

    @property
    def step_number(self) -> int:
        """The number of the typical step, counted from 1: the one that all figures describe."""
        return self.steps.first_number + self.steps.typical

    @cached_property
    def steps(self) -> StepWindows:
        """When each step began and ended. Raises SimulationError if the run made none."""
        return step_windows(self.programs, self.times, num_skipped=self.trace.run.num_skipped_steps)

    @cached_property
    def _window(self) -> tuple[int, int]:
        typical = self.steps.typical
        return int(self.steps.start_ns[typical]), int(self.steps.end_ns[typical])

    # ---- one rank ----

    def breakdown(self, rank: int) -> Breakdown:
        """Return where the step's time goes on `rank`; the parts add up to `step_ns`."""
        index = self.actor_of(rank).index
        return break_down(
            self.programs[index], self.times[index], self.axes(index), window=self._window, step=self.step_number
        )

    def axes(self, actor: int) -> tuple[str, ...]:
        """Return the name of the mesh axis of each edge of an actor's program."""
        view = self.trace.rank(self.actors[actor].representative)
        return tuple(axis_name(view.group(edge.group).name) for edge in self.programs[actor].edges)

    def spans(self, rank: int) -> list[Span]:
        """Return every operator and call of `rank` that touches the window, in order of start."""
        return unroll(self._execution(rank), window=self._window)

    def span_columns(self, rank: int, *, whole_run: bool = False) -> SpanColumns:
        """Return the spans as arrays, by stream and start: those in the window, or of the whole run."""
        execution = self._execution(rank)
        whole = (-1, int(execution.times.end_ns.max(initial=0)) + 1)
        return span_columns(execution, window=whole if whole_run else self._window)

    def host_columns(self, rank: int) -> HostColumns:
        """Return what the host of `rank` does in the window."""
        return host_columns(self._execution(rank), window=self._window)

    def _execution(self, rank: int) -> RankExecution:
        index = self.actor_of(rank).index
        return RankExecution(
            view=self.trace.rank(rank),
            program=self.programs[index],
            times=self.times[index],
            table=self.tables[index],
            axes=self.axes(index),
        )

    def record_times(self, rank: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return records of `rank`, ascending, and when the device began what was issued there, also ascending."""
        index = self.actor_of(rank).index
        program, times = self.programs[index], self.times[index]
        work = ((program.kind == Opcode.RUN) | (program.kind == Opcode.CALL)) & (times.start_ns >= 0)
        records = np.concatenate([program.first_record[work], program.last_record[work]]).astype(np.int64)
        moments = np.concatenate([times.start_ns[work], times.end_ns[work]])
        order = np.lexsort((moments, records))
        return records[order], np.maximum.accumulate(moments[order])

    def event_times_ns(self, rank: int) -> npt.NDArray[np.int64]:
        """Return when the events of `rank` (`torch.cuda.Event`) happened, in the order in which it recorded them."""
        index = self.actor_of(rank).index
        program, times = self.programs[index], self.times[index]
        marks = np.flatnonzero(program.kind == Opcode.MARK)
        kinds = self.trace.rank(rank).records.kind[program.first_record[marks]]
        return np.asarray(times.end_ns[marks[kinds == Kind.EVENT_RECORD]])

    def transactions(self, rank: int) -> list[Transaction]:
        """Return the calls of `rank` in the step, by operator, axis and size."""
        index = self.actor_of(rank).index
        program, axes = self.programs[index], self.axes(index)
        counts = np.bincount(program.row_pattern[self._calls_of_step(index)], minlength=len(program.patterns))
        transactions = []
        for number, (pattern, count) in enumerate(zip(program.patterns, counts.tolist(), strict=True)):
            if count:
                transfer = self.wiring.transfers[int(self.wiring.transfer_of_pattern[index][number])]
                transactions.append(
                    Transaction(
                        op=pattern.op,
                        axis=axes[pattern.edge],
                        size_bytes=max(pattern.bytes_in, pattern.bytes_out),
                        count=count,
                        algorithm=transfer.algorithm,
                        protocol=transfer.protocol,
                        alone_ns=transfer.total_ns,
                    )
                )
        return transactions

    def operator_counts(self, actor: int) -> OperatorCounts:
        """Return how often an actor ran each operator in the step."""
        program = self.programs[actor]
        records = self.actors[actor].rank_class.records.records
        runs = np.flatnonzero((program.kind == Opcode.RUN) & self._in_step(actor))
        marks = np.zeros(len(records) + 1, dtype=np.int64)
        np.add.at(marks, program.first_record[runs], 1)
        np.add.at(marks, program.last_record[runs] + 1, -1)
        chosen = (np.cumsum(marks[:-1]) > 0) & (records.kind == Kind.OPERATOR)
        keys = records.ref[chosen].astype(np.int64) * len(Phase) + records.phase[chosen]
        codes, counts = np.unique(keys, return_counts=True)
        return OperatorCounts(signature=codes // len(Phase), phase=codes % len(Phase), count=counts)

    # ---- the whole cluster ----

    @cached_property
    def link_loads(self) -> LinkLoads:
        """Bytes and utilisation of every link in one step."""
        counts = np.zeros(len(self.wiring.transfers))
        for index, program in enumerate(self.programs):
            rows = self._calls_of_step(index)
            if len(rows):
                ids = self.wiring.transfer_of_pattern[index][program.row_pattern[rows]]
                slots = self.wiring.slots[self.wiring.channel_of_edge[index][program.row_edge[rows]]]
                np.add.at(counts, ids, 1.0 / slots)
        carried = np.zeros(self.topology.num_links)
        for count, transfer in zip(counts.tolist(), self.wiring.transfers, strict=True):
            if count:
                carried[transfer.links] += np.rint(count) * transfer.bytes_on_links
        capacity = np.asarray(self.topology.bandwidth_bytes_per_s) * (self.step_ns / 1e9)
        return LinkLoads(bytes_carried=carried, utilisation=carried / capacity)

    @cached_property
    def basis(self) -> dict[str, float]:
        """The shares of compute time that rest on measured, fitted and nominal numbers."""
        totals = np.zeros(len(BASES))
        # Actors of one class on one kind of device have the same program: jitter makes thousands of them.
        num_ranks: Counter[tuple[int, int]] = Counter()
        one_of: dict[tuple[int, int], int] = {}
        for actor in self.actors:
            key = (id(self.programs[actor.index]), id(self.tables[actor.index]))
            one_of.setdefault(key, actor.index)
            num_ranks[key] += len(actor.ranks)
        for key, index in one_of.items():
            table, counts = self.tables[index], self.operator_counts(index)
            work = table.costs.work_ns[counts.signature] * counts.count * num_ranks[key]
            np.add.at(totals, table.basis[counts.signature], work)
        total = totals.sum()
        return {name: float(part / total) if total else 0.0 for name, part in zip(BASES, totals, strict=True)}

    def _in_step(self, actor: int) -> npt.NDArray[np.bool_]:
        """Return which instructions are in the actor's own step; ranks of a pipeline enter it at different times.

        Of a rank without steps, such as a server, these are all instructions of training.
        """
        program = self.programs[actor]
        number = np.arange(len(program))
        first, last = program.first_work, len(program) - 1
        if len(program.steps):
            last = int(program.steps[self.step_number - 1])
            first = int(program.steps[self.step_number - 2]) + 1 if self.step_number >= 2 else first
        return np.asarray((number >= first) & (number <= last))

    def _calls_of_step(self, actor: int) -> npt.NDArray[np.int64]:
        """Return the call rows of the actor's step, in the program's order."""
        program = self.programs[actor]
        calls = np.flatnonzero((program.kind == Opcode.CALL) & self._in_step(actor))
        counts = program.count[calls].astype(np.int64)
        offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(program.arg[calls].astype(np.int64), counts) + offset


def axis_name(group: str) -> str:
    """Return the mesh axis of a group: `tp` for `mesh_tp`."""
    return group.removeprefix("mesh_") or "group"
