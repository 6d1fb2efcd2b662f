"""Small traces for the tests of this room."""

from typing import Any

from sandtable.trace import (
    FlatBuffer,
    Group,
    Kind,
    Line,
    MemoryPeaks,
    Note,
    Phase,
    RankRecords,
    RunFacts,
    Signature,
    SyncKind,
    TensorSpec,
)


def spec(
    *shape: int, dtype: str = "float32", device: str = "cuda", strides: tuple[int, ...] | None = None
) -> TensorSpec:
    """Return a contiguous tensor, unless strides are given."""
    if strides is None:
        strides = ()
        size = 1
        for length in reversed(shape):
            strides = (size, *strides)
            size *= length
    return TensorSpec(dtype, shape, strides, device)


MM = Signature("aten::mm", (spec(8, 4), spec(4, 16)), (spec(8, 16),))
"""1024 FLOPs."""
ADD = Signature("aten::add.Tensor", (spec(8, 16), spec(8, 16)), (spec(8, 16),), "[1]")

WORLD = Group("world", (0, 1, 2, 3))
PAIRS = (Group("even", (0, 2)), Group("odd", (1, 3)))


def make_rank(
    rank: int = 0, *, swap_tables: bool = False, block: int = 7, event: int = 3, **changes: Any
) -> RankRecords:
    """Two steps of a little work on a world of four; `swap_tables` numbers the same work in another way."""
    mm, add = (1, 0) if swap_tables else (0, 1)
    train, sync = (2, 1) if swap_tables else (1, 2)
    lines = [Line("train.py", 10, "main"), Line("train.py", 20, "log")]
    step = [
        (Kind.ALLOC, block, 0, Phase.FORWARD, 0, 512),
        (Kind.OPERATOR, mm, 0, Phase.FORWARD, train, 0),
        (Kind.OPERATOR, add, 0, Phase.BACKWARD, train, 0),
        (Kind.EVENT_RECORD, event, 0, Phase.BACKWARD, train, 0),
        (Kind.EVENT_WAIT, event, 1, Phase.BACKWARD, train, 0),
        (Kind.COLLECTIVE, 0, 1, Phase.BACKWARD, train, 0),
        (Kind.WAIT, 0, 0, Phase.BACKWARD, train, 0),
        (Kind.COLLECTIVE, 1, 1, Phase.BACKWARD, train, 0),
        (Kind.HOST_SYNC, 0, 0, Phase.OPTIMIZER, sync, SyncKind.ITEM),
        (Kind.FREE, block, 0, Phase.OPTIMIZER, 0, 512),
        (Kind.STEP, 0, 0, Phase.OPTIMIZER, 0, 0),
    ]
    rows = []
    for number in range(2):
        for kind, ref, stream, phase, line, value in step:
            shifted = ref + 2 * number if kind in (Kind.COLLECTIVE, Kind.WAIT) else ref
            rows.append((kind, number if kind == Kind.STEP else shifted, stream, phase, line, value))
    rows.insert(0, (Kind.OPERATOR, add, 0, Phase.FORWARD, train, 0))
    names = ("kind", "ref", "stream", "phase", "line", "value")
    fields: dict[str, Any] = {
        "rank": rank,
        "records": dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)),
        "calls": {
            "op": [0, 1, 0, 1],
            "group": [0, 1, 0, 1],
            "seq": [0, 0, 1, 1],
            "dtype": [0, 0, 0, 0],
            "bytes_in": [1024, 256, 1024, 256],
            "bytes_out": [1024, 0, 1024, 0],
            "peer": [-1, 1, -1, 1],
            "stream": [1, 1, 1, 1],
            "line": [train] * 4,
            "reduce": [1, 0, 1, 0],
        },
        "signatures": [ADD.text, MM] if swap_tables else [MM.text, ADD],
        "call_ops": ["all_reduce", "send"],
        "dtypes": ["float32"],
        "reduces": ["", "sum"],
        "splits": [((), ())],
        "lines": [Line(), *(reversed(lines) if swap_tables else lines)],
        "groups": [WORLD, PAIRS[rank % 2]],
        "flat_buffers": [FlatBuffer(num_elements=8, parts=((0, 4, ("vector",)), (4, 3, ())))],
        "chunked_dims": [(576, 0)],
        "notes": [Note("stand-in", "a loss was read", sync)],
        "memory": MemoryPeaks(allocated_bytes=512, reserved_bytes=2**21, capacity_bytes=2**30),
        "num_steps": 2,
        "stop_reason": "steps",
        "core_seconds": 0.5 + rank,
    }
    return RankRecords.build(**(fields | changes))


RUN = RunFacts(world_size=4, cluster="dgx-a100", gpus_per_node=8, command=("train.py", "--fast"), wall_seconds=1.5)
