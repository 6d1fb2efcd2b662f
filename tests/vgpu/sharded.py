"""Ranks with differently cut shards, as a framework's optimizer would make them, without running one."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sandtable.trace import FlatBuffer, Group, Kind, RankRecords, Signature, SyncKind, TensorSpec

Sizes = Sequence[int]


def layer_sizes(num_layers: int, *, hidden: int = 64) -> list[int]:
    """The parameters of transformer layers, an embedding first."""
    layer = [hidden, hidden, 3 * hidden * hidden, 3 * hidden, hidden * hidden, hidden]
    return [100 * hidden * hidden, *(layer * num_layers)]


class ShardedScript:
    """A script that takes a norm of each piece of a rank, reads each, and updates all pieces at once.

    With `tp`, every rank of a tensor-parallel group holds the same pieces. Then there is one norm more, of all pieces,
    for which only the first rank of the group counts the vectors.
    """

    def __init__(
        self,
        world_size: int,
        sizes: Sizes,
        *,
        tp: int = 1,
        extra: Callable[[int, Sizes], int] = lambda rank, pieces: 0,
    ):
        self.world_size, self.extra, self.tp = world_size, extra, tp
        self.num_shards = world_size // tp
        length = -(-sum(sizes) // self.num_shards)
        starts = np.cumsum([0, *sizes]).tolist()
        parts = zip(starts, sizes, strict=False)
        self.buffer = FlatBuffer(
            num_elements=length * self.num_shards,
            parts=tuple((start, size, ("vector" if size < 1000 else "matrix",)) for start, size in parts),
        )
        self.captured: list[int] = []

    def pieces(self, rank: int) -> list[int]:
        """The sizes of the pieces of a rank."""
        return [size for size, _ in self._pieces(rank)]

    def _pieces(self, rank: int) -> Iterator[tuple[int, bool]]:
        """The size of each piece of a rank, and whether its parameter is a matrix."""
        shard, length = rank // self.tp, self.buffer.num_elements // self.num_shards
        for start, size, flags in self.buffer.parts:
            low, high = max(start, shard * length), min(start + size, (shard + 1) * length)
            if low < high:
                yield high - low, "matrix" in flags

    def records(self, rank: int) -> RankRecords:
        """What a rank does."""
        self.captured.append(rank)
        pieces = self.pieces(rank)
        specs = [TensorSpec("float32", (size,), (1,)) for size in pieces]
        signatures = [Signature("aten::linalg_vector_norm", (spec,)) for spec in specs]
        signatures.append(Signature("aten::_foreach_add_", tuple(specs)))
        signatures.append(Signature("aten::mm", (TensorSpec("float32", (8, 8), (8, 1)),)))
        counted = [spec for spec, (_, is_matrix) in zip(specs, self._pieces(rank), strict=True) if is_matrix]
        signatures.append(Signature("aten::_foreach_norm", tuple(counted if rank % self.tp else specs)))
        kinds, refs, values = [Kind.COLLECTIVE], [0], [0]
        for number in range(len(pieces)):
            kinds += [Kind.OPERATOR, Kind.HOST_SYNC]
            refs += [number, 0]
            values += [0, SyncKind.ITEM]
        num_products = 3 + self.extra(rank, pieces)
        kinds += [Kind.OPERATOR] * (2 + num_products)
        refs += [len(pieces), len(pieces) + 2] + [len(pieces) + 1] * num_products
        values += [0] * (2 + num_products)
        dp_group = tuple(range(rank % self.tp, self.world_size, self.tp))
        return RankRecords.build(
            rank=rank,
            records={"kind": kinds, "ref": refs, "value": values},
            calls={"op": [0], "group": [1 if self.tp > 1 else 0], "bytes_out": [4 * self.buffer.num_elements]},
            signatures=signatures,
            call_ops=("all_gather",),
            dtypes=("float32",),
            groups=(Group("world", tuple(range(self.world_size))), Group("dp", dp_group)),
            flat_buffers=(self.buffer,),
        )
