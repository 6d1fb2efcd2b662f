"""Shards: how many pieces of which parameters each rank holds, by arithmetic.

Lay planks of different lengths end to end and saw the whole into equal parts: some parts come from the middle of one
plank, others hold the ends of several. A flat buffer of N elements over D ranks is sawn at p N / D, p = 1 ... D - 1, so
its layout tells the pieces of every rank, whether it runs or not. Most of the ranks of a large run hold one piece; the
few that hold the biases and norms of a layer hold a dozen.

Cost: O(parameters + ranks), for any number of ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from sandtable.trace.records import FlatBuffer, RankRecords, ReducedBucket
from sandtable.trace.signature import DTYPE_BITS

__all__ = ["CutBuffer", "PieceTable", "cut_buffers", "piece_table"]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

Buckets = tuple[tuple[int, int], ...]
"""The start and the size of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutBuffer:
    """A flat buffer, and how it is cut: each bucket (start, size) into equal shards, one per member of the group."""

    number: int
    """Its place among the flat buffers of the rank."""
    buffer: FlatBuffer
    group: int
    """An index into the rank's own groups."""
    num_shards: int
    buckets: Buckets


@dataclass(frozen=True, slots=True, eq=False)
class PieceTable:
    """What ranks hold: one row per rank, one column per name.

    Columns are what may decide the work of a rank: the number of its pieces; their elements; the elements of the whole
    parameters they are pieces of; the same of parameters with a flag; and whether a list of them is empty, or has one
    entry, which needs no concatenation. Where gradients are reduced in buckets, the same of those reduced in the
    backward pass and of those reduced after it; a *slice* is what neighbours in a bucket that belong to one rank make.
    Parameters without a flag may be copies that every rank of a group holds (biases in tensor parallelism), which only
    the first rank of the group counts in a norm: for each flag and kind of group, what a rank counts then.
    """

    ranks: Ints
    names: tuple[str, ...]
    flags: tuple[str, ...]
    """The flags that some parameters have and others have not."""
    reductions: tuple[str, ...]
    """The ends of names of columns about buckets: " in backward", " after backward"."""
    norms: tuple[str, ...]
    """The ends of names of columns about what is counted in a norm: " of tensor_model_parallel, or first of 2"."""
    firsts: tuple[Bools, ...]
    """For each kind of group, which ranks are the first of theirs."""
    rows: Ints

    def column(self, name: str) -> Ints:
        """Return one column."""
        return np.asarray(self.rows[:, self.names.index(name)])

    def of(self, ranks: Sequence[int]) -> Ints:
        """Return the rows of some of the ranks."""
        return np.asarray(self.rows[np.searchsorted(self.ranks, np.asarray(ranks, dtype=np.int64))])

    @property
    def is_even(self) -> bool:
        """Whether all ranks hold the same."""
        held = self.rows[:, : len(self.held_names)]
        return bool((held == held[:1]).all())

    @property
    def held_names(self) -> tuple[str, ...]:
        """The names of the columns about what ranks hold: all but those about norms, which follow."""
        return self.names[: len(self.names) - 2 * len(self.norms)]


_REDUCED = ("pieces", "elements", "whole", "slices")
"""What is counted of reduced buckets."""


def cut_buffers(records: RankRecords) -> list[CutBuffer]:
    """Return the flat buffers of a rank that its calls gather or scatter, whole or in consecutive buckets.

    Of several groups whose calls may be those of a buffer, it is the one that cuts it where parameters begin, into the
    fewest buckets: calls of other groups may add up to its size by chance. Buffers that are alike (experts of several
    chunks of a pipeline stage) may be cut in different ways, each as often as calls show it.
    """
    calls = _sharding_calls(records)
    alike: dict[FlatBuffer, list[int]] = {}
    for number, buffer in enumerate(records.flat_buffers):
        alike.setdefault(buffer, []).append(number)
    cut: list[CutBuffer] = []
    for buffer, numbers in alike.items():
        by_group = {group: _ways(buffer, sizes, len(records.groups[group].ranks)) for group, sizes in calls.items()}
        by_group = {group: ways for group, ways in by_group.items() if ways}
        if not by_group:
            continue
        group, ways = min(by_group.items(), key=lambda item: (not _is_aligned(item[1][0], buffer), len(item[1][0])))
        num_shards = len(records.groups[group].ranks)
        for place, number in enumerate(numbers):
            buckets = ways[place * len(ways) // len(numbers)]
            cut.append(CutBuffer(number=number, buffer=buffer, group=group, num_shards=num_shards, buckets=buckets))
    return sorted(cut, key=lambda one: one.number)


def _ways(buffer: FlatBuffer, sizes: Sequence[int], num_shards: int) -> list[Buckets]:
    """Return the ways in which calls of these sizes may cut a buffer, as often as they occur, fewest buckets first.

    If some cut it where parameters begin, only these.
    """
    if num_shards == 1 or buffer.num_shards not in (0, num_shards):
        return []
    ways = [((0, buffer.num_elements),)] if buffer.num_shards else list(_bucketings(buffer.num_elements, sizes))
    ways = [way for way in ways if all(size % num_shards == 0 for _, size in way)]
    aligned = [way for way in ways if _is_aligned(way, buffer)]
    return sorted(aligned or ways, key=len)


def _is_aligned(buckets: Buckets, buffer: FlatBuffer) -> bool:
    """Return whether each bucket begins where a parameter does."""
    return {start for start, _ in buckets} <= {0, *(start for start, _, _ in buffer.parts)}


def piece_table(
    ranks: Ints,
    buffers: Sequence[tuple[CutBuffer, Ints]],
    reduced: Sequence[ReducedBucket] = (),
    firsts: Sequence[Bools] = (),
) -> PieceTable:
    """Count the pieces of each of `ranks`; every buffer comes with their positions in its group.

    `firsts` tell, for each kind of group, which ranks are the first of theirs.
    """
    pieces, elements, whole = _count(ranks, buffers)
    columns = {"pieces": pieces, "elements": elements, "whole": whole, "none": pieces == 0, "one": pieces == 1}
    in_use = [set(flags) for cut, _ in buffers for _, _, flags in cut.buffer.parts]
    flags = sorted(set[str]().union(*in_use) - set[str].intersection(*in_use)) if in_use else []
    for flag in flags:
        flagged, flagged_elements, _ = _count(ranks, buffers, flag=flag)
        columns |= {f"pieces of {flag}": flagged, f"elements of {flag}": flagged_elements}
        columns |= {f"none of {flag}": flagged == 0, f"none but {flag}": flagged == pieces}
    reductions = []
    for name, is_in_backward in ((" in backward", True), (" after backward", False)):
        chosen = [bucket for bucket in reduced if bucket.is_in_backward == is_in_backward]
        if chosen:
            reductions.append(name)
            counted = _count_reduced(ranks, buffers, chosen)
            columns |= {f"{what}{name}": row for what, row in zip(_REDUCED, counted, strict=True)}
    norms = []
    for (number, is_first), flag in product(enumerate(firsts), flags):
        norms.append(f" of {flag}, or first of {number}")
        for name in ("pieces", "elements"):
            columns[f"{name}{norms[-1]}"] = np.where(is_first, columns[name], columns[f"{name} of {flag}"])
    rows = np.stack(list(columns.values()), axis=1).astype(np.int64)
    return PieceTable(ranks, tuple(columns), tuple(flags), tuple(reductions), tuple(norms), tuple(firsts), rows)


def _count(ranks: Ints, buffers: Sequence[tuple[CutBuffer, Ints]], *, flag: str | None = None) -> Ints:
    """Return three numbers per rank: its pieces, their elements, and the elements of the parameters they belong to.

    With `flag`, only parameters that have it count.
    """
    totals = np.zeros((3, len(ranks)), dtype=np.int64)
    for cut, positions in buffers:
        shards = np.zeros((3, cut.num_shards), dtype=np.int64)
        parts = [part[:2] for part in cut.buffer.parts if flag is None or flag in part[2]]
        for low, high, size, length in _spans(parts, cut):
            first, last = low // length, (high - 1) // length
            shards[:, first : last + 1] += np.array([[1], [length], [size]])
            shards[1, first] -= low - first * length
            shards[1, last] -= (last + 1) * length - high
        totals += shards[:, positions]
    return totals


def _count_reduced(ranks: Ints, buffers: Sequence[tuple[CutBuffer, Ints]], reduced: Sequence[ReducedBucket]) -> Ints:
    """Return four numbers per rank about these buckets: its pieces, elements, whole parameters, and slices."""
    cuts = {cut.number: (cut, positions) for cut, positions in buffers}
    totals = np.zeros((len(_REDUCED), len(ranks)), dtype=np.int64)
    shards = {number: np.zeros((len(_REDUCED), cut.num_shards), dtype=np.int64) for number, (cut, _) in cuts.items()}
    for bucket in reduced:
        before = None  # the last shard of the parameter before
        for number, part in bucket.parameters:
            if number not in cuts:
                continue
            cut = cuts[number][0]
            for low, high, size, length in _spans([cut.buffer.parts[part][:2]], cut):
                first, last = low // length, (high - 1) // length
                counted = shards[number]
                counted[:, first : last + 1] += np.array([[1], [length], [size], [1]])
                counted[1, first] -= low - first * length
                counted[1, last] -= (last + 1) * length - high
                counted[3, first] -= first == before
                before = last
    for number, (_, positions) in cuts.items():
        totals += shards[number][:, positions]
    return totals


def _spans(parts: Sequence[tuple[int, int]], cut: CutBuffer) -> Iterator[tuple[int, int, int, int]]:
    """Yield, of each parameter in each bucket, its ends in the bucket, its size, and the length of a shard."""
    for bucket_start, bucket_size in cut.buckets:
        for start, size in parts:
            low = max(start, bucket_start) - bucket_start
            high = min(start + size, bucket_start + bucket_size) - bucket_start
            if low < high:
                yield low, high, size, bucket_size // cut.num_shards


def _sharding_calls(records: RankRecords) -> dict[int, list[int]]:
    """Return the elements that calls gather from all shards, then those that calls scatter to them, by group."""
    sizes: dict[int, list[int]] = {}
    calls = records.calls
    for name, column in (("all_gather", calls.bytes_out), ("reduce_scatter", calls.bytes_in)):
        for row in np.flatnonzero(np.isin(calls.op, [k for k, op in enumerate(records.call_ops) if op == name])):
            element_bytes = DTYPE_BITS[records.dtypes[calls.dtype[row]]] // 8
            sizes.setdefault(int(calls.group[row]), []).append(int(column[row]) // element_bytes)
    return sizes


def _bucketings(num_elements: int, sizes: Sequence[int]) -> Iterator[Buckets]:
    """Yield where consecutive calls (or one) add up to the size of a buffer."""
    ends = np.cumsum([0, *sizes]).tolist()
    place = {end: k for k, end in enumerate(ends)}
    for last, end in enumerate(ends):
        first = place.get(end - num_elements)
        if first is not None:
            yield tuple((ends[k] - ends[first], sizes[k]) for k in range(first, last))
