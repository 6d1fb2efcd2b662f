"""The functions of `grouped_gemm_backend`."""

from __future__ import annotations

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["gmm", "permute", "sinkhorn", "unpermute", "unpermute_bwd"]


def gmm(a: Tensor, b: Tensor, c: Tensor, batch_sizes: Tensor, trans_a: bool, trans_b: bool) -> None:
    """Multiply the rows of each group of `a` with a matrix of `b`, or with the same rows of `b` transposed."""
    sizes = batch_sizes.tolist()
    if trans_a:
        products = tuple((1, a.shape[1], b.shape[1], size) for size in sizes if size)
    else:
        columns = b.shape[1] if trans_b else b.shape[2]
        products = tuple((1, size, columns, a.shape[1]) for size in sizes if size)
    work = Work(family="gemm", products=products, dtype=str(a.dtype).removeprefix("torch."))
    record_kernel("grouped_gemm::gmm", inputs=[a, b], outputs=[c], work=work)


def permute(
    x: Tensor, indices: Tensor, num_out_tokens: int, workspace: list[Tensor], max_expanded_token_num: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Sort tokens by expert: a sort of indices, then a copy of rows."""
    num_rows = num_out_tokens if num_out_tokens > 0 else indices.numel()
    if not workspace:
        size = max(max_expanded_token_num, indices.numel())
        workspace = [x.new_empty(size, dtype=torch.int32) for _ in range(3)]
    rows, places = x.new_empty(num_rows, x.shape[1]), x.new_empty(indices.numel(), dtype=torch.int32)
    sort = Work(family="indexing", num_kernels=3, bytes_read=8 * 4 * indices.numel())
    record_kernel("grouped_gemm::sort", inputs=[indices], outputs=[places], work=sort)
    record_kernel("grouped_gemm::permute", inputs=[x, places], outputs=[rows], work=Work(family="indexing"))
    return rows, places, workspace


def unpermute(x: Tensor, row_id_map: Tensor, prob: Tensor, max_tokens: int, num_topk: int) -> Tensor:
    """Put tokens back, adding up what experts made of them."""
    out = x.new_empty(row_id_map.numel() // max(num_topk, 1), x.shape[1])
    inputs = [tensor for tensor in (x, row_id_map, prob) if tensor is not None]
    record_kernel("grouped_gemm::unpermute", inputs=inputs, outputs=[out], work=Work(family="indexing"))
    return out


def unpermute_bwd(grad: Tensor, x: Tensor, row_id_map: Tensor, prob: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate `unpermute`."""
    dx, dprob = torch.empty_like(x), torch.empty_like(prob)
    inputs = [grad, x, row_id_map, prob]
    record_kernel("grouped_gemm::unpermute_bwd", inputs=inputs, outputs=[dx, dprob], work=Work(family="indexing"))
    return dx, dprob


def sinkhorn(cost: Tensor, tol: float = 0.0001) -> Tensor:
    """Balance a matrix, in as many passes as the tolerance takes: about ten."""
    out = torch.empty_like(cost)
    record_kernel("grouped_gemm::sinkhorn", inputs=[cost], outputs=[out], work=Work(family="reduction", num_kernels=10))
    return out
