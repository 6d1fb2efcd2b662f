"""Blocks of memory: what each one holds.

The allocator records when each block came and went. Its lifetime reveals what it *is*, as watching a door distinguishes
furniture from groceries. A block that comes before training and stays is a parameter. One that comes in backward and is
still there when the optimizer begins is a gradient. One that comes in the optimizer and stays is optimizer state. One
that comes in forward and outlives some of backward is an activation. The rest is temporary.

Two hints settle what lifetimes cannot: the sizes of the tensors that the optimizer updates (a block that stays but has
no such size is a buffer, not a parameter), and the sizes of what is reduced or zeroed in every step (a flat gradient
buffer or a bucket made before training).

Sizes are the allocator's: requests rounded up to 512 bytes, and large blocks up to 1 MiB more (see `RankView.memory`).
"""

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sandtable.trace.kinds import Kind, Phase
from sandtable.trace.signature import TENSOR, Signature, TensorSpec
from sandtable.trace.view import RankView

__all__ = ["Blocks", "Category", "classify_blocks"]

Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ROUNDING_BYTES = 512
_LARGE_BYTES = _SLACK_BYTES = 1 << 20
_MEMORY_KINDS = (Kind.ALLOC, Kind.FREE, Kind.SEGMENT_ALLOC, Kind.SEGMENT_FREE)
_IS_MEMORY = np.isin(np.arange(256), _MEMORY_KINDS)
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_FILLING = ("aten::zero_", "aten::fill_", "copy::host_to_device")


class Category(IntEnum):
    """What a block of memory holds, in the order in which charts stack it."""

    PARAMETERS = 0
    GRADIENTS = 1
    OPTIMIZER = 2
    BUFFERS = 3
    ACTIVATIONS = 4
    TEMPORARY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Every block of one rank: its category, its size, and the records that allocated and freed it.

    `freed_row` is the number of records where a block was never freed.
    """

    allocated_row: Rows
    freed_row: Rows
    size_bytes: Rows
    category: npt.NDArray[np.int8]


def classify_blocks(view: RankView) -> Blocks:
    """Find the lifetime of every block, and derive its category."""
    records = view.records
    allocated = np.flatnonzero(records.kind == Kind.ALLOC)
    if not len(allocated):  # a rank that failed before it used its device
        nothing = np.zeros(0, dtype=np.int64)
        return Blocks(allocated_row=allocated, freed_row=nothing, size_bytes=nothing, category=nothing.astype(np.int8))
    lives = _Lifetimes(view, allocated, _free_rows(view, allocated))
    category = np.full(len(allocated), Category.TEMPORARY, dtype=np.int8)
    category[lives.is_gradient] = Category.GRADIENTS
    category[lives.is_activation] = Category.ACTIVATIONS
    category[lives.is_state] = Category.OPTIMIZER
    _settle_residents(view, lives, category)
    return Blocks(
        allocated_row=allocated, freed_row=lives.freed, size_bytes=records.value[allocated], category=category
    )


class _Lifetimes:
    """The lifetimes of blocks relative to the course of training."""

    def __init__(self, view: RankView, allocated: Rows, freed: Rows) -> None:
        records = view.records
        self.size = records.value[allocated]
        self.allocated, self.freed = allocated, freed
        before, after = _phases(view)
        backward = np.concatenate(([0], np.cumsum((before == Phase.BACKWARD) & ~_is_memory(view))))
        steps = np.flatnonzero(records.kind == Kind.STEP)
        self.num_steps = len(steps)
        phase = after[allocated]
        num_backward = backward[freed] - backward[allocated]
        num_survived = np.searchsorted(steps, freed) - np.searchsorted(steps, allocated)
        stays = freed > steps[-1] if self.num_steps else freed >= len(records)
        in_forward = (phase == Phase.FORWARD) | (phase == Phase.RECOMPUTE)
        self.is_gradient: Flags = (phase == Phase.BACKWARD) & _reaches_optimizer(view, before, allocated, freed)
        self.is_state: Flags = (phase == Phase.OPTIMIZER) & stays
        self.crosses_step: Flags = (num_survived > 0) & (phase == Phase.FORWARD)
        self.is_activation: Flags = in_forward & (num_backward > 0)
        # A script that holds its last logits keeps them through one step; what outlives two steps stays.
        lasting = (num_survived >= min(2, max(self.num_steps, 1))) | (stays & (allocated < _first_backward(view)))
        self.is_resident: Flags = (phase == Phase.FORWARD) & lasting


def _settle_residents(view: RankView, lives: _Lifetimes, category: npt.NDArray[np.int8]) -> None:
    """Distinguish parameters, gradient buffers and other buffers among the blocks that stay."""
    reduced = _is_reduced(view, lives)
    is_parameter = _find_parameters(view, lives, reduced)
    built_before = lives.allocated <= lives.allocated[is_parameter].max(initial=-1)
    rest = lives.is_resident & ~is_parameter
    category[rest & (built_before | (lives.num_steps > 1))] = Category.BUFFERS
    # A bucket may be rebuilt after the first step, so it need not live to the end.
    may_be_bucket = lives.crosses_step & (rest | (category == Category.ACTIVATIONS))
    category[reduced & may_be_bucket & ~is_parameter] = Category.GRADIENTS
    category[is_parameter] = Category.PARAMETERS


def _find_parameters(view: RankView, lives: _Lifetimes, reduced: Flags) -> Flags:
    """Return which blocks that stay are parameters: of each size, as many of the first as the optimizer updates.

    Where parameters are not blocks of their own (flat or padded shards) sizes do not match; then the earliest of the
    others are taken until all bytes that the optimizer updates have a place.
    """
    updated = _updated_sizes(view)
    if not updated:
        return lives.is_resident & ~reduced
    sizes = np.array(sorted(updated), dtype=np.int64)
    counts = np.array([updated[size] for size in sizes.tolist()], dtype=np.int64)
    classes = _size_classes(lives.size, sizes)
    is_parameter = _among_first(classes, lives.is_resident & (classes >= 0), counts)
    missing = int(sizes @ counts) - int(lives.size[is_parameter].sum())
    others = np.flatnonzero(lives.is_resident & ~is_parameter & ~reduced)
    taken = others[np.cumsum(lives.size[others]) - lives.size[others] < missing]
    is_parameter[taken] = True
    return is_parameter


def _free_rows(view: RankView, allocated: Rows) -> Rows:
    """Return the record that frees each block. Ids are unique among living blocks, but may be used again afterwards."""
    records = view.records
    freed = np.flatnonzero(records.kind == Kind.FREE)
    rows = np.concatenate((allocated, freed))
    ids = records.ref[rows]
    order = np.lexsort((rows, ids))
    is_alloc = order < len(allocated)
    follows = np.flatnonzero(is_alloc[:-1] & ~is_alloc[1:] & (ids[order][:-1] == ids[order][1:]))
    ends = np.full(len(allocated), len(records), dtype=np.int64)
    ends[order[follows]] = rows[order[follows + 1]]
    return ends


def _is_memory(view: RankView) -> Flags:
    return _IS_MEMORY[view.records.kind]


def _phases(view: RankView) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return for each record the phase of the last work at or before it, and of the next at or after it.

    Records of memory carry no phase of their own: an operator's outputs are allocated just before it is recorded.
    """
    phase = view.records.phase
    work = np.flatnonzero(~_is_memory(view))
    if not len(work):
        return phase, phase
    marks = np.full(len(phase), work[0])
    marks[work] = work
    last = np.maximum.accumulate(marks)
    marks = np.full(len(phase), work[-1])
    marks[work] = work
    following = np.minimum.accumulate(marks[::-1])[::-1]
    return phase[last], phase[following]


def _first_backward(view: RankView) -> int:
    rows = np.flatnonzero((view.records.phase == Phase.BACKWARD) & ~_is_memory(view))
    return int(rows[0]) if len(rows) else len(view.records)


def _reaches_optimizer(view: RankView, phases: npt.NDArray[np.uint8], allocated: Rows, freed: Rows) -> Flags:
    """Return whether a block is alive when the optimizer next begins after its allocation."""
    begins = np.flatnonzero((phases[1:] == Phase.OPTIMIZER) & (phases[:-1] != Phase.OPTIMIZER)) + 1
    if not len(begins):
        return freed >= len(view.records)
    following = np.searchsorted(begins, allocated)
    known = following < len(begins)
    reached: Flags = known & (freed > begins[np.minimum(following, len(begins) - 1)])
    return reached


def _updated_sizes(view: RankView) -> dict[int, int]:
    """Return the sizes of the tensors that the optimizer updates in one step, and how many there are of each.

    Each of its operators works on every parameter, or on something of every parameter's size, at least once: of all
    operators that touch a size, the one that does so least often counts.
    """
    steps = view.step_slices()
    span = steps[-1] if steps else slice(0, 0)
    records = view.records
    chosen = (records.kind[span] == Kind.OPERATOR) & (records.phase[span] == Phase.OPTIMIZER)
    by_operator: dict[str, Counter[int]] = {}
    for ref, num in zip(*(c.tolist() for c in np.unique(records.ref[span][chosen], return_counts=True)), strict=True):
        signature = view.signature(ref)
        if signature.name not in _FILLING:
            sizes = by_operator.setdefault(signature.op, Counter())
            for spec in _first_list(signature):
                sizes[_rounded(spec.size_bytes)] += num
    fewest: dict[int, int] = {}
    for sizes in by_operator.values():
        for size, num in sizes.items():
            fewest[size] = min(num, fewest.get(size, num))
    fewest.pop(0, None)
    return fewest


def _first_list(signature: Signature) -> tuple[TensorSpec, ...]:
    """Return the tensors of an operator's first argument: lists are equally long, and some may be empty."""
    tensors = signature.inputs
    num_lists = max(signature.arguments.count(TENSOR), 1)
    while num_lists > 1 and len(tensors) % num_lists:
        num_lists -= 1
    return tensors[: len(tensors) // num_lists]


def _is_reduced(view: RankView, lives: _Lifetimes) -> Flags:
    """Return which blocks have a size that is reduced or zeroed once backward has begun, as gradients in a buffer are.

    Each buffer is reduced once per step; a size that comes more often than there are such blocks belongs to others.
    """
    counts = _reduced_sizes(view)
    sizes = np.array(sorted(counts), dtype=np.int64)
    classes = _size_classes(lives.size, sizes)
    num_blocks = np.bincount(classes[lives.crosses_step & (classes >= 0)], minlength=len(sizes))
    rare = np.array([counts[size] for size in sizes.tolist()], dtype=np.int64) <= num_blocks
    reduced: Flags = (classes >= 0) & np.append(rare, False)[classes]
    return reduced


def _reduced_sizes(view: RankView) -> dict[int, int]:
    """Return the sizes that the last step reduces in or after backward or zeroes in place, and how often."""
    records, calls, span = view.records, view.calls, view.step_slice()
    kind, ref = records.kind[span], records.ref[span]
    late = np.arange(len(kind)) >= np.argmax((records.phase[span] == Phase.BACKWARD) & (kind == Kind.OPERATOR))
    reducing = np.array([op in _REDUCING for op in view.rank_class.records.call_ops] or [False])
    rows = ref[(kind == Kind.COLLECTIVE) & late]
    counts = Counter(map(_rounded, calls.bytes_in[rows][reducing[calls.op[rows]]].tolist()))
    refs, num_launches = np.unique(ref[kind == Kind.OPERATOR], return_counts=True)
    zeroed: Counter[int] = Counter()
    for index, num in zip(refs.tolist(), num_launches.tolist(), strict=True):
        signature = view.signature(index)
        if signature.name in ("aten::zero_", "aten::_foreach_zero_"):
            zeroed.update({_rounded(spec.size_bytes): num for spec in signature.inputs})
    counts.update({size: num for size, num in zeroed.items() if size not in counts})
    return {size: num for size, num in counts.items() if size > 2 * _ROUNDING_BYTES}


def _rounded(size_bytes: int) -> int:
    """Round a request as the allocator does."""
    return -(-size_bytes // _ROUNDING_BYTES) * _ROUNDING_BYTES


def _size_classes(block_bytes: Rows, requests: Rows) -> Rows:
    """Return the index of the request that a block of this size may answer; -1 where there is none."""
    if not len(requests):
        return np.full(len(block_bytes), -1, dtype=np.int64)
    index = np.searchsorted(requests, block_bytes, side="right") - 1
    slack = block_bytes - requests[np.maximum(index, 0)]
    allowed = np.where(block_bytes > _LARGE_BYTES, _SLACK_BYTES, 1)
    fits: Rows = np.where((index >= 0) & (slack < allowed), index, -1)
    return fits


def _among_first(classes: Rows, chosen: Flags, limits: Rows) -> Flags:
    """Return which chosen blocks are among the first `limits[class]` of their class, in order of allocation."""
    rows = np.flatnonzero(chosen)
    order = rows[np.argsort(classes[rows], kind="stable")]
    grouped = classes[order]
    starts = np.searchsorted(grouped, grouped)
    position = np.arange(len(order)) - starts
    kept = np.zeros(len(classes), dtype=np.bool_)
    kept[order[position < limits[grouped]]] = True
    return kept
