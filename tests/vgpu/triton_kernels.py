# ruff: noqa: N803 - meta-parameters are written in capitals
"""Kernels of Triton, for tests: imported only on a virtual GPU, where there always is a module of that name."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def store(pointer, offsets, value, mask):
    tl.store(pointer + offsets, value, mask=mask)


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y_ptrs = y_ptr + offsets
    y_ptrs += BLOCK
    y = tl.load(y_ptrs, mask=mask)
    store(out_ptr, offsets, x + y, mask)


@triton.jit
def gather(index_ptr, table_ptr, out_ptr, sum_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    index = tl.load(index_ptr + place)
    row = tl.load(table_ptr + index * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + index, row)
    tl.atomic_add(sum_ptr, tl.sum(row))


@triton.jit
def multiply_halves(a_desc, b_desc, out_desc, num_tiles, NUM_PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    for tile in tl.range(tl.program_id(0), num_tiles, NUM_PROGRAMS, flatten=True):
        block = tl.dot(a_desc.load([tile * BLOCK, 0]), b_desc.load([0, 0]).T)
        first, second = tl.split(tl.permute(tl.reshape(block, (BLOCK, 2, BLOCK // 2)), (0, 2, 1)))
        both = tl.interleave(tl.maximum(first, 0), second * tl.sqrt(second))
        out_desc.store([tile * BLOCK, 0], tl.reshape(tl.join(both, both), (BLOCK, 2 * BLOCK)))


@triton.jit
def multiply_symmetric(a_ptr, out_ptr, ROWS, INNER, BLOCK: tl.constexpr):
    """Multiply a matrix with its transpose: tiles above the diagonal are those below it."""
    tiles = tl.cdiv(ROWS, BLOCK)
    place = tl.program_id(0)
    row, column = tl.swizzle2d(place // tiles, place % tiles, tiles, tiles, 8)
    if row < column:
        return
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for step in range(0, tl.cdiv(INNER, BLOCK)):
        inner = step * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + (row * BLOCK + tl.arange(0, BLOCK))[:, None] * INNER + inner[None, :])
        b = tl.load(a_ptr + (column * BLOCK + tl.arange(0, BLOCK))[:, None] * INNER + inner[None, :])
        total = tl.dot(a, tl.trans(b), total)
    tl.store(out_ptr + row * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def copy_blocks(source, target, BLOCK: tl.constexpr):
    block = source.load([0, 0])
    target.store([0, 0], block)


def _only_small(configs, named_args, **_):
    return [config for config in configs if config.kwargs["BLOCK"] <= 64]


@triton.autotune(
    configs=[triton.Config({"BLOCK": size}, num_warps=8) for size in (128, 64, 32)],
    key=["n"],
    prune_configs_by={"early_config_prune": _only_small},
)
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def product(a_ptr, b_ptr, c_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    block = tl.dot(tl.load(a_ptr + offsets[:, None]), tl.load(b_ptr + offsets[None, :]))
    tl.store(c_ptr + offsets, block)


@triton.jit
def swizzled(place, rows, columns, group: tl.constexpr):
    """Return the row and column of a program's tile; groups of rows are visited column by column."""
    first = place // (group * columns) * group
    height = tl.minimum(rows - first, group)
    within = place % (group * columns)
    return first + within % height, within // height


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pid = tl.program_id(axis=0).to(tl.int64)
    row, column = swizzled(pid, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), 8)
    rows = (row * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (column * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    inner = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows[:, None] * K + inner[None, :])
    b_ptrs = b_ptr + (inner[:, None] * N + columns[None, :])
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        mask = inner[None, :] < K - step * BLOCK_K
        a = tl.load(a_ptrs, mask=mask, other=0.0)
        b = tl.load(b_ptrs)
        total = tl.dot(a, b, total)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * N
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(c_ptr.dtype.element_ty))


@triton.jit
def attend_to(total, sums, largest, q, k_block, v_block, begin, end, BLOCK: tl.constexpr):
    for _ in tl.range(begin, end, BLOCK):
        k = tl.load(k_block)
        scores = tl.dot(q, tl.trans(k))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.math.exp2(scores - new_largest[:, None])
        shrink = tl.math.exp2(largest - new_largest)
        sums = sums * shrink + tl.sum(weights, 1)
        total = total * shrink[:, None]
        total = tl.dot(weights.to(tl.bfloat16), tl.load(v_block), total)
        largest = new_largest
        k_block = tl.advance(k_block, (BLOCK, 0))
        v_block = tl.advance(v_block, (BLOCK, 0))
    return total, sums, largest


@triton.jit
def attend(q_ptr, k_ptr, v_ptr, out_ptr, SEQUENCE, DIM: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr):
    """Flash attention: a program per block of queries and head; with a causal mask it ends at its own block."""
    start, head = tl.program_id(0), tl.program_id(1)
    offset = head * SEQUENCE * DIM
    q_block = tl.make_block_ptr(q_ptr + offset, (SEQUENCE, DIM), (DIM, 1), (start * BLOCK, 0), (BLOCK, DIM), (1, 0))
    k_block = tl.make_block_ptr(k_ptr + offset, (SEQUENCE, DIM), (DIM, 1), (0, 0), (BLOCK, DIM), (1, 0))
    v_block = tl.make_block_ptr(
        v_ptr + offset, (SEQUENCE, DIM), (DIM, 1), (0, 0), block_shape=(BLOCK, DIM), order=(1, 0)
    )
    out_block = tl.make_block_ptr(out_ptr + offset, (SEQUENCE, DIM), (DIM, 1), (start * BLOCK, 0), (BLOCK, DIM), (1, 0))
    largest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    sums = tl.zeros([BLOCK], dtype=tl.float32) + 1.0
    total = tl.zeros([BLOCK, DIM], dtype=tl.float32)
    q = tl.load(q_block)
    end = (start + 1) * BLOCK if CAUSAL else SEQUENCE
    total, sums, _ = attend_to(total, sums, largest, q, k_block, v_block, 0, end, BLOCK)
    total /= sums[:, None]
    tl.store(out_block, total.to(out_ptr.type.element_ty))


@triton.jit
def multiply_some(a_ptr, count_ptr, out_ptr, BLOCK: tl.constexpr):
    """Multiply as often as a number in memory says."""
    a = tl.load(a_ptr + tl.arange(0, BLOCK)[:, None])
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for _ in range(tl.load(count_ptr)):
        total = tl.dot(a, tl.trans(a), total)
    tl.store(out_ptr + tl.arange(0, BLOCK), total)


@torch.library.triton_op("sandtable_tests::add", mutates_args={})
def add_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), 256)
    return out
