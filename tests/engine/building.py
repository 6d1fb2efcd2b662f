"""Little programs for the tests of the engine: what ranks do, as short lists of words."""

from dataclasses import dataclass, field
from typing import Any

from sandtable.trace import (
    Group,
    Kind,
    Line,
    Note,
    Phase,
    RankRecords,
    RunFacts,
    Signature,
    SyncKind,
    TensorSpec,
    Trace,
)


def square(size: int, dtype: str = "float16") -> TensorSpec:
    """Return a square matrix."""
    return TensorSpec(dtype, (size, size), (size, 1))


def product(size: int) -> Signature:
    """Return a product of two square matrices."""
    return Signature("aten::mm", (square(size), square(size)), (square(size),))


def addition(size: int) -> Signature:
    """Return a sum of two square matrices."""
    return Signature("aten::add.Tensor", (square(size), square(size)), (square(size),), '["t","t",1]')


SIGNATURES = (product(1024), addition(1024), product(4096), addition(64))


@dataclass
class Script:
    """What one rank does; each method appends to it and returns the number of what it appended."""

    rank: int = 0
    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    calls: list[dict[str, int]] = field(default_factory=list)
    steps: int = 0

    def op(self, signature: int = 0, *, stream: int = 0, phase: Phase = Phase.FORWARD) -> None:
        self._row(Kind.OPERATOR, signature, stream, phase)

    def collective(self, size: int, *, group: int = 0, op: str = "all_reduce", stream: int = 0) -> int:
        return self._call(op, size, size, group=group, peer=-1, stream=stream, batch=0)

    def send(self, size: int, peer: int, *, group: int = 0, stream: int = 0, batch: int = 0) -> int:
        return self._call("send", size, 0, group=group, peer=peer, stream=stream, batch=batch)

    def recv(self, size: int, peer: int, *, group: int = 0, stream: int = 0, batch: int = 0) -> int:
        return self._call("recv", 0, size, group=group, peer=peer, stream=stream, batch=batch)

    def wait(self, call: int, *, stream: int = 0) -> None:
        self._row(Kind.WAIT, call, stream)

    def record(self, event: int, *, stream: int = 0) -> None:
        self._row(Kind.EVENT_RECORD, event, stream)

    def wait_event(self, event: int, *, stream: int = 0) -> None:
        self._row(Kind.EVENT_WAIT, event, stream)

    def sync(self, kind: SyncKind = SyncKind.ITEM, *, stream: int = 0, event: int = 0) -> None:
        self._row(Kind.HOST_SYNC, event, stream, value=kind)

    def step(self) -> None:
        self._row(Kind.STEP, self.steps, 0, Phase.OPTIMIZER)
        self.steps += 1

    def _row(self, kind: Kind, ref: int, stream: int, phase: Phase = Phase.FORWARD, value: int = 0) -> None:
        self.rows.append((kind, ref, stream, phase, 1, value))

    def _call(self, op: str, bytes_in: int, bytes_out: int, *, group: int, peer: int, stream: int, batch: int) -> int:
        seq = sum((c["op"], c["group"], c["peer"]) == (OPS.index(op), group, peer) for c in self.calls)
        self.calls.append(
            {
                "op": OPS.index(op), "group": group, "seq": seq, "dtype": 0,
                "bytes_in": bytes_in, "bytes_out": bytes_out, "peer": peer, "stream": stream, "line": 1, "batch": batch,
            }
        )  # fmt: skip
        self._row(Kind.COLLECTIVE, len(self.calls) - 1, stream)
        return len(self.calls) - 1

    def records(self, groups: tuple[Group, ...] = ()) -> RankRecords:
        names = ("kind", "ref", "stream", "phase", "line", "value")
        columns: dict[str, Any] = dict(zip(names, map(list, zip(*self.rows, strict=True)), strict=True))
        calls = {name: [call[name] for call in self.calls] for name in self.calls[0]} if self.calls else None
        return RankRecords.build(
            rank=self.rank,
            records=columns,
            calls=calls,
            signatures=[signature.text for signature in SIGNATURES],
            call_ops=list(OPS),
            dtypes=["float16"],
            lines=[Line(), Line("train.py", 7, "main")],
            groups=[group for group in groups if self.rank in group.ranks],
            num_steps=self.steps,
        )


OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv", "barrier")


def make_trace(
    scripts: dict[int, Script],
    *,
    classes: dict[int, list[int]],
    groups: tuple[Group, ...],
    gpus_per_node: int = 8,
    ranks_per_node: int = 0,
    notes: tuple[Note, ...] = (),
    num_skipped_steps: int = 1,
) -> Trace:
    """Return a trace in which each representative's class does the work of its script."""
    world_size = sum(map(len, classes.values()))
    for rank, script in scripts.items():
        script.rank = rank
    return Trace.assemble(
        {rank: script.records(groups) for rank, script in scripts.items()},
        classes=classes,
        groups=groups,
        run=RunFacts(
            world_size=world_size,
            cluster="dgx-a100",
            gpus_per_node=gpus_per_node,
            ranks_per_node=ranks_per_node,
            command=("train.py",),
            num_skipped_steps=num_skipped_steps,
            notes=notes,
        ),
    )
