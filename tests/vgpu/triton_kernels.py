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


@torch.library.triton_op("sandtable_tests::add", mutates_args={})
def add_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), 256)
    return out
