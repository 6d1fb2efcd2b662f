"""Ranks with differently cut shards, as a framework's optimizer would make them, without running one."""

from collections.abc import Callable, Sequence

import numpy as np

from sandtable.trace import FlatBuffer, Group, Kind, RankRecords, Signature, SyncKind, TensorSpec

Sizes = Sequence[int]


def layer_sizes(num_layers: int, *, hidden: int = 64) -> list[int]:
    """The parameters of transformer layers, an embedding first."""
    layer = [hidden, hidden, 3 * hidden * hidden, 3 * hidden, hidden * hidden, hidden]
    return [100 * hidden * hidden, *(layer * num_layers)]


class ShardedScript:
    """A script that takes a norm of each piece of a rank, reads each, and updates all pieces at once."""

    def __init__(self, world_size: int, sizes: Sizes, *, extra: Callable[[int, Sizes], int] = lambda rank, pieces: 0):
        self.world_size, self.extra = world_size, extra
        length = -(-sum(sizes) // world_size)
        starts = np.cumsum([0, *sizes]).tolist()
        self.buffer = FlatBuffer(
            num_elements=length * world_size,
            parts=tuple(
                (start, size, ("vector",) if size < 1000 else ()) for start, size in zip(starts, sizes, strict=False)
            ),
        )
        self.captured: list[int] = []

    def pieces(self, rank: int) -> list[int]:
        """The sizes of the pieces of a rank."""
        length = self.buffer.num_elements // self.world_size
        ends = [
            (max(start, rank * length), min(start + size, (rank + 1) * length)) for start, size, _ in self.buffer.parts
        ]
        return [high - low for low, high in ends if low < high]

    def records(self, rank: int) -> RankRecords:
        """What a rank does."""
        self.captured.append(rank)
        pieces = self.pieces(rank)
        specs = [TensorSpec("float32", (size,), (1,)) for size in pieces]
        signatures = [Signature("aten::linalg_vector_norm", (spec,)) for spec in specs]
        signatures.append(Signature("aten::_foreach_add_", tuple(specs)))
        signatures.append(Signature("aten::mm", (TensorSpec("float32", (8, 8), (8, 1)),)))
        kinds, refs, values = [Kind.COLLECTIVE], [0], [0]
        for number in range(len(pieces)):
            kinds += [Kind.OPERATOR, Kind.HOST_SYNC]
            refs += [number, 0]
            values += [0, SyncKind.ITEM]
        num_products = 3 + self.extra(rank, pieces)
        kinds += [Kind.OPERATOR] * (1 + num_products)
        refs += [len(pieces)] + [len(pieces) + 1] * num_products
        values += [0] * (1 + num_products)
        return RankRecords.build(
            rank=rank,
            records={"kind": kinds, "ref": refs, "value": values},
            calls={"op": [0], "bytes_out": [4 * self.buffer.num_elements]},
            signatures=signatures,
            call_ops=("all_gather",),
            dtypes=("float32",),
            groups=(Group("world", tuple(range(self.world_size))),),
            flat_buffers=(self.buffer,),
        )
