"""Pieces by arithmetic are those that one finds by cutting the buffer."""

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandtable.trace import FlatBuffer, Group, RankRecords, ReducedBucket
from sandtable.vgpu.shards import CutBuffer, cut_buffers, piece_table


def laid_out(sizes: list[int], *, num_elements: int, vectors: AbstractSet[int] = frozenset()) -> FlatBuffer:
    parts = [(sum(sizes[:k]), size, ("vector",) if k in vectors else ()) for k, size in enumerate(sizes)]
    return FlatBuffer(num_elements=num_elements, parts=tuple(parts))


def gathering(
    gathered: list[int],
    *,
    buffers: list[FlatBuffer],
    groups: Sequence[Group] = (Group("world", (0, 1)),),
    calls_of: list[int] | None = None,
) -> RankRecords:
    """A rank with these buffers that gathers so many elements per call, each in the group of `calls_of`."""
    return RankRecords.build(
        rank=0,
        records={"kind": [1] * len(gathered), "ref": range(len(gathered))},
        calls={
            "op": [0] * len(gathered),
            "group": calls_of or [0] * len(gathered),
            "bytes_in": [1] * len(gathered),
            "bytes_out": [4 * n for n in gathered],
        },
        call_ops=("all_gather",),
        dtypes=("float32",),
        groups=tuple(groups),
        flat_buffers=tuple(buffers),
    )


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    num_shards=st.integers(1, 9),
    num_buckets=st.integers(1, 3),
    data=st.data(),
)
def test_every_rank_holds_the_pieces_between_its_cuts(sizes, num_shards, num_buckets, data):
    shortest = -(-sum(sizes) // (num_shards * num_buckets))
    bucket = num_shards * data.draw(st.integers(shortest, 2 * shortest))
    vectors = {k for k in range(len(sizes)) if data.draw(st.booleans())}
    buffer = laid_out(sizes, num_elements=bucket * num_buckets, vectors=vectors)
    cut = CutBuffer(
        number=0,
        buffer=buffer,
        group=0,
        num_shards=num_shards,
        buckets=tuple((k * bucket, bucket) for k in range(num_buckets)),
    )
    ranks = np.arange(num_shards)
    table = piece_table(ranks, [(cut, ranks)])

    owner = np.full(bucket * num_buckets, -1)
    for number, (start, size, _) in enumerate(buffer.parts):
        owner[start : start + size] = number
    shards = owner.reshape(num_buckets, num_shards, -1)
    for rank in range(num_shards):
        held = [set(shard.tolist()) - {-1} for shard in shards[:, rank]]
        assert table.column("pieces")[rank] == sum(map(len, held))
        assert table.column("elements")[rank] == (shards[:, rank] >= 0).sum()
        assert table.column("whole")[rank] == sum(sizes[part] for parts in held for part in parts)
        assert table.column("none")[rank] == (not any(held))
        if "vector" in table.flags:
            assert table.column("pieces of vector")[rank] == sum(len(parts & vectors) for parts in held)


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), num_shards=st.integers(1, 9), data=st.data())
def test_slices_are_what_neighbours_in_a_bucket_that_belong_to_one_rank_make(sizes, num_shards, data):
    order = data.draw(st.permutations(range(len(sizes))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sizes)), max_size=2)))
    length = -(-sum(sizes) // num_shards)
    buffer = laid_out(sizes, num_elements=length * num_shards)
    cut = CutBuffer(number=0, buffer=buffer, group=0, num_shards=num_shards, buckets=((0, length * num_shards),))
    members = [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(sizes)], strict=True)]
    buckets = [ReducedBucket(is_in_backward=True, parameters=tuple((0, part) for part in parts)) for parts in members]
    ranks = np.arange(num_shards)
    table = piece_table(ranks, [(cut, ranks)], buckets)
    assert table.reductions == (" in backward",)

    slices, pieces = Counter[int](), Counter[int]()
    for parts in members:
        spans = [range(buffer.parts[part][0], sum(buffer.parts[part][:2])) for part in parts]
        slices += Counter(rank for rank, _ in groupby(place // length for span in spans for place in span))
        pieces += Counter(rank for span in spans for rank in {place // length for place in span})
    for rank in range(num_shards):
        assert table.column("slices in backward")[rank] == slices[rank]
        assert table.column("pieces in backward")[rank] == pieces[rank] == table.column("pieces")[rank]
        assert table.column("elements in backward")[rank] == table.column("elements")[rank]
        assert table.column("whole in backward")[rank] == table.column("whole")[rank]


@pytest.mark.parametrize(
    ("gathered", "buckets"),
    [
        ([6, 48, 6], [((0, 48),)]),
        ([24, 16, 8, 24, 16, 8], [((0, 24), (24, 16), (40, 8))]),
        ([40, 16, 32], [((0, 16), (16, 32))]),
        ([7, 9], []),
        ([7, 41], []),  # two members do not hold equal shards of 7
    ],
)
def test_a_buffer_is_cut_as_calls_gather_it(gathered, buckets):
    records = gathering(gathered, buffers=[laid_out([10, 20], num_elements=48)])
    assert [cut.buckets for cut in cut_buffers(records)] == buckets


def test_buckets_begin_where_parameters_do_and_calls_that_add_up_by_chance_do_not_count():
    """Three gathers of 16 in a group of two, and in one of four 8, 16, 24 forward and 24, 16, 8 backward."""
    gathered = [16, 16, 16, 8, 16, 24, 4, 24, 16, 8]
    records = gathering(
        gathered,
        buffers=[laid_out([10, 14, 16, 5], num_elements=48)],
        groups=[Group("tp", (0, 1)), Group("dp", (0, 2, 4, 6))],
        calls_of=[0, 0, 0, *[1] * 7],
    )
    (cut,) = cut_buffers(records)
    assert cut.group == 1
    assert cut.buckets == ((0, 24), (24, 16), (40, 8))


def test_buffers_that_are_alike_are_cut_in_all_ways_that_calls_show():
    """The experts of two chunks: one buffer is gathered in two buckets, the other whole."""
    gathered = [16, 32, 48, 16, 32, 48]
    buffer = laid_out([10, 6, 16, 15], num_elements=48)
    records = gathering(gathered, buffers=[buffer, buffer])
    assert [cut.buckets for cut in cut_buffers(records)] == [((0, 48),), ((0, 16), (16, 32))]


def test_a_buffer_that_nobody_gathers_is_not_cut():
    records = RankRecords.build(rank=0, records={}, flat_buffers=(laid_out([1, 2], num_elements=4),))
    assert cut_buffers(records) == []


def test_a_parameter_that_is_cut_on_its_own_needs_no_call_of_its_size():
    """ZeRO-3: 10 elements over 4 ranks are 3, 3, 3 and 1."""
    buffer = FlatBuffer(num_elements=12, parts=((0, 10, ()),), num_shards=4)
    ranks = np.arange(4)
    table = piece_table(ranks, [(CutBuffer(number=0, buffer=buffer, group=0, num_shards=4, buckets=((0, 12),)), ranks)])
    assert table.column("elements").tolist() == [3, 3, 3, 1]
    for group_size, is_cut in ((4, True), (2, False)):
        records = RankRecords.build(
            rank=0,
            records={"kind": [1], "ref": [0]},
            calls={"op": [0], "bytes_in": [1], "bytes_out": [4 * 24]},
            call_ops=("all_gather",),
            dtypes=("float32",),
            groups=(Group("world", tuple(range(group_size))),),
            flat_buffers=(buffer,),
        )
        assert bool(cut_buffers(records)) == is_cut
