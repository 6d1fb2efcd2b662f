"""A timeline made by hand: each rank by itself, simple costs, no waiting for others. For tests of what draws it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from sandtable.cluster import Cluster, load
from sandtable.cluster.topology import Topology
from sandtable.engine.columns import CATEGORIES, HostColumns, SpanColumns
from sandtable.trace import Kind, Line, Phase, RankClass, Trace, bytes_moved, flops

PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    Phase.RECOMPUTE: "recompute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    index: int
    representative: int
    ranks: tuple[int, ...]
    rank_class: RankClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    record: int
    start_ns: int
    end_ns: int
    stream: int
    name: str
    category: str
    phase: Phase
    axis: str
    line: Line
    bytes: int
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    forward: int = 0
    backward: int = 0
    recompute: int = 0
    optimizer: int = 0
    communication: Mapping[str, int]
    bubble: int = 0
    straggler: int = 0
    host: int = 0
    input: int = 0
    other: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    op: str
    axis: str
    size_bytes: int
    count: int
    algorithm: str = "ring"
    protocol: str = "Simple"
    alone_ns: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoads:
    bytes_carried: npt.NDArray[np.float64]
    utilisation: npt.NDArray[np.float64]


class FakeTimeline:
    """Of the last step of `trace`, on `cluster` or on as many A100 nodes as it takes."""

    def __init__(self, trace: Trace, cluster: Cluster | None = None) -> None:
        per_node = min(trace.gpus_per_node, trace.world_size)
        self.trace = trace
        self.cluster = cluster or load("dgx-a100", nodes=-(-trace.world_size // per_node))
        self.topology = Topology(self.cluster, ranks_per_node=per_node, num_ranks=trace.world_size)
        self.actors = tuple(
            Actor(index=k, representative=each.representative, ranks=each.ranks, rank_class=each)
            for k, each in enumerate(trace.classes)
        )
        self.basis = {"measured": 0.0, "fitted": 0.85, "nominal": 0.15}
        self._spans = cache(self._work_out)
        self.step_start_ns = 1_000_000_000
        ends = [max((s.end_ns for s in self.spans(a.representative)), default=self.step_start_ns) for a in self.actors]
        self.step_end_ns = max(ends) + 1
        self.step_ns = self.step_end_ns - self.step_start_ns

    def actor_of(self, rank: int) -> Actor:
        return next(actor for actor in self.actors if rank in actor.ranks)

    def spans(self, rank: int) -> Sequence[Span]:
        return self._spans(self.actor_of(rank).representative)

    def span_columns(self, rank: int, *, whole_run: bool = False) -> SpanColumns:
        spans = sorted(self.spans(rank), key=lambda span: (span.stream, span.start_ns))
        names = tuple(dict.fromkeys(span.name for span in spans))
        axes = tuple(dict.fromkeys(span.axis for span in spans))
        numbers = {
            "record": [span.record for span in spans],
            "start_ns": [span.start_ns for span in spans],
            "end_ns": [span.end_ns for span in spans],
            "stream": [span.stream for span in spans],
            "name": [names.index(span.name) for span in spans],
            "category": [CATEGORIES.index(span.category) for span in spans],
            "phase": [int(span.phase) for span in spans],
            "axis": [axes.index(span.axis) for span in spans],
            "line": [self.trace.lines.index(span.line) for span in spans],
            "bytes": [span.bytes for span in spans],
        }
        columns = {name: np.array(values, dtype=np.int64) for name, values in numbers.items()}
        flops_done = np.array([span.flops for span in spans], dtype=np.float64)
        return SpanColumns(**columns, flops=flops_done, names=names, axes=axes)

    def host_columns(self, rank: int) -> HostColumns:
        """A host that issues everything at the beginning, then waits for the device."""
        middle = self.step_start_ns + self.step_ns // 3
        return HostColumns(
            start_ns=np.array([self.step_start_ns, middle]),
            end_ns=np.array([middle, self.step_end_ns]),
            waits=np.array([False, True]),
            count=np.array([10, 1]),
            line=np.array([0, 1]),
        )

    def breakdown(self, rank: int) -> Breakdown:
        parts: Counter[str] = Counter()
        axes: Counter[str] = Counter()
        end = self.step_start_ns
        for span in sorted(self.spans(rank), key=lambda each: (each.category != "compute", each.start_ns)):
            if span.category == "compute":
                parts[PHASES[span.phase]] += span.end_ns - span.start_ns
            else:
                axes[span.axis] += (span.end_ns - span.start_ns) // 3
            end = max(end, span.end_ns)
        rest = self.step_ns - sum(parts.values()) - sum(axes.values())
        return Breakdown(communication=dict(axes), bubble=max(rest, 0), other=min(rest, 0), **parts)

    def transactions(self, rank: int) -> Sequence[Transaction]:
        counts = Counter((s.name, s.axis, s.bytes) for s in self.spans(rank) if s.category == "communication")
        return [Transaction(op=op, axis=axis, size_bytes=size, count=n) for (op, axis, size), n in counts.items()]

    @cached_property
    def link_loads(self) -> LinkLoads:
        """Every call sends its bytes once around its group's ring."""
        loads = np.zeros(self.topology.num_links)
        for actor in self.actors:
            view = self.trace.rank(actor.representative)
            sent: Counter[tuple[tuple[int, ...], int | None]] = Counter()
            for call in view.collectives(self._step(actor.representative)):
                sent[call.group.ranks, call.peer] += max(call.bytes_in, call.bytes_out)
            for (ranks, peer), size in sent.items():
                hops = np.array(ranks if peer is None else (view.rank, peer))
                for member in actor.ranks:
                    src = (hops + member - view.rank) % self.trace.world_size
                    links = self.topology.routes(src, np.roll(src, -1))
                    np.add.at(loads, links[links >= 0], size / len(hops))
        used = loads / self.topology.bandwidth_bytes_per_s / (self.step_ns / 1e9)
        scale = min(0.93 / max(used.max(), 1e-12), 1.0)
        return LinkLoads(bytes_carried=loads * scale, utilisation=used * scale)

    def record_times(self, rank: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Evenly over the step."""
        span = self._step(rank)
        return np.array([span.start, span.stop]), np.array([self.step_start_ns, self.step_end_ns])

    def _step(self, rank: int) -> slice:
        view = self.trace.rank(rank)
        steps = view.step_slices()
        return steps[-1] if steps else slice(0, len(view.records))

    def _work_out(self, rank: int) -> list[Span]:
        """Streams run in order, and wait for events and for calls."""
        view = self.trace.rank(rank)
        records, calls = view.records, view.calls
        device = self.topology.devices[0]
        clock: dict[int, int] = defaultdict(lambda: self.step_start_ns)
        events: dict[int, int] = {}
        done: dict[int, int] = {}
        costs: dict[int, tuple[int, str, int, int]] = {}
        spans = []
        span = self._step(rank)
        for i in range(span.start, span.stop):
            kind, ref, stream = int(records.kind[i]), int(records.ref[i]), int(records.stream[i])
            now = clock[stream]
            if kind == Kind.OPERATOR:
                if ref not in costs:
                    signature = view.signature(ref)
                    work, moved = flops(signature), sum(bytes_moved(signature))
                    ns = max(
                        work / (0.55 * device.matmul.bfloat16), moved / (0.7 * device.memory_bandwidth_bytes_per_s)
                    )
                    costs[ref] = (int(ns * 1e9) + 2500, signature.name, moved, work)
                ns, name, moved, work = costs[ref]
                category, axis = "copy" if name.startswith("copy::") else "compute", ""
            elif kind == Kind.COLLECTIVE:
                name, group = view.rank_class.records.call_ops[calls.op[ref]], view.group(int(calls.group[ref]))
                moved, work = int(max(calls.bytes_in[ref], calls.bytes_out[ref])), 0
                rate = 160e9 if max(group.ranks) - min(group.ranks) < 8 else 20e9
                ns = 12_000 + int(moved / rate * 1e9)
                category, axis = "communication", group.name.removeprefix("mesh_")
                done[ref] = now + ns
            else:
                if kind == Kind.EVENT_RECORD:
                    events[ref] = now
                elif kind == Kind.EVENT_WAIT:
                    clock[stream] = max(now, events.get(ref, 0))
                elif kind == Kind.WAIT:
                    clock[stream] = max(now, done.get(ref, 0))
                continue
            clock[stream] = now + ns
            spans.append(
                Span(
                    record=i,
                    start_ns=now,
                    end_ns=now + ns,
                    stream=stream,
                    name=name,
                    category=category,
                    phase=Phase(int(records.phase[i])),
                    axis=axis,
                    line=view.line(int(records.line[i])),
                    bytes=moved,
                    flops=work,
                )
            )
        return spans
