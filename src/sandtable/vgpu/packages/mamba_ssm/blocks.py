"""`mamba_ssm.ops.triton.ssd_combined`: the scan of Mamba 2 as matrix products within chunks (Dao and Gu 2024).

With Q positions per chunk, N states, P channels per head, H heads in G groups and c chunks in all:

    products of B and C     c·G of Q x Q x N
    states of chunks        c·H of P x N x Q
    passing of states       c·H·P·N float32, from chunk to chunk
    outputs                 c·H of Q x P x Q and Q x P x N

The backward pass computes the first three again, and then two products for each of these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.causal_conv1d.functions import causal_conv1d_fn
from sandtable.vgpu.packages.kernels import record_kernel
from sandtable.vgpu.packages.mamba_ssm.gated_norm import rmsnorm_fn

__all__ = ["mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"]

Products = tuple[tuple[int, int, int, int], ...]


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Any = None, z: Any = None,  # noqa: N803
    dt_bias: Any = None, initial_states: Any = None, seq_idx: Any = None, *_: Any, return_final_states: bool = False,
    **__: Any,
) -> Any:  # fmt: skip
    """Scan (batch, length, heads, channels)."""
    out = _ChunkScan.apply(chunk_size, x, dt, A, B, C, D, z, dt_bias)  # type: ignore[no-untyped-call]
    if not return_final_states:
        return out
    return out, x.new_empty(x.shape[0], x.shape[2], x.shape[3], B.shape[-1], dtype=torch.float32)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Any, dt_bias: Tensor, A: Tensor, D: Any, chunk_size: int,  # noqa: N803
    initial_states: Any = None, seq_idx: Any = None, dt_limit: Any = None, return_final_states: bool = False,
    activation: str = "silu", rmsnorm_weight: Any = None, rmsnorm_eps: float = 1e-6, outproj_weight: Any = None,
    outproj_bias: Any = None, headdim: int | None = None, ngroups: int = 1, norm_before_gate: bool = True,
) -> Any:  # fmt: skip
    """Run a whole block of Mamba 2: convolution, scan, gated norm and output."""
    heads = dt_bias.shape[0]
    inner = heads * (headdim or (D.shape[1] if D is not None and D.dim() == 2 else 64))
    states = (zxbcdt.shape[-1] - 2 * inner - heads) // ngroups // 2
    z, xbc, dt = torch.split(zxbcdt, [inner, inner + 2 * ngroups * states, heads], dim=-1)
    xbc = causal_conv1d_fn(xbc.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx, activation=activation)
    x, b, c = xbc.transpose(1, 2).split([inner, ngroups * states, ngroups * states], dim=-1)
    x, b, c = (y.reshape(*y.shape[:2], n, -1) for y, n in ((x, heads), (b, ngroups), (c, ngroups)))
    is_gated = rmsnorm_weight is None
    gate = z.reshape(*z.shape[:2], heads, -1) if is_gated else None
    out = mamba_chunk_scan_combined(x, dt, A, b, c, chunk_size, D, gate, dt_bias).flatten(2)
    if not is_gated:
        out = rmsnorm_fn(out, rmsnorm_weight, None, z=z)
    if outproj_weight is not None:
        out = torch.nn.functional.linear(out, outproj_weight, outproj_bias)
    return out


class _ChunkScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chunk: int, x: Tensor, dt: Tensor, *rest: Any) -> Tensor:
        a, b, c, d, z, bias = rest
        out = torch.empty_like(x)
        cumulative, states, between = _states(chunk, x, dt, a, b, c, bias)
        products = _output_products(chunk, x, b)
        before_gate = [torch.empty_like(x)] if z is not None else []
        inputs = [t for t in (between, states, x, dt, cumulative, c, d, z) if t is not None]
        _launch("chunk_scan", inputs, [out, *before_gate], products)
        ctx.save_for_backward(x, dt, a, b, c, d, z, bias, cumulative, before_gate[0] if before_gate else out)
        ctx.chunk = chunk
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        x, dt, a, b, c, d, z, bias, cumulative, out = ctx.saved_tensors
        _, states, between = _states(ctx.chunk, x, dt, a, b, c, bias)
        dstates, dbetween = torch.empty_like(states), torch.empty_like(between)
        outputs, of_states, of_chunks = _products(ctx.chunk, x, b)
        dx, ddt = torch.empty_like(x), torch.empty_like(dt, dtype=torch.float32)
        # One gradient of B and C per head, added up over the heads of a group.
        db, dc = (y.new_empty((*y.shape[:2], x.shape[2], y.shape[-1]), dtype=torch.float32) for y in (b, c))
        dz = None if z is None else torch.empty_like(z)
        if dz is not None:
            _launch("chunk_scan_bwd_dz", [dout, z, out], [dz], ())
        _launch("chunk_scan_bwd_dstates", [dout, c, cumulative], [dstates], outputs[1:])
        _launch("state_passing_bwd", [dstates, states], [dstates], ())
        _launch("chunk_scan_chunk_state_bwd_dx", [dout, x, between, b, dstates, cumulative], [dx, ddt], outputs)
        _launch("chunk_state_bwd_db", [x, dt, dstates, cumulative], [db], of_states)
        _launch("chunk_scan_bwd_dc", [states, dout, cumulative], [dc], of_states)
        _launch("chunk_scan_bwd_dcb", [x, dout, dt], [dbetween], outputs[:1])
        _launch("bmm_chunk_bwd", [dbetween, b, c], [db, dc], of_chunks * 2)
        summed = [y.view(*like.shape[:3], -1, like.shape[-1]).sum(3).to(like.dtype) for y, like in ((db, b), (dc, c))]
        da = torch.empty_like(a)
        _launch("chunk_cumsum_bwd", [ddt, dt, a], [da], ())
        ones = [None if t is None else torch.empty_like(t) for t in (d, bias)]
        return None, dx, ddt.to(dt.dtype), da, *summed, ones[0], dz, ones[1]


def _states(chunk: int, x: Tensor, dt: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Launch what comes before the outputs: sums of steps, states of chunks, and products of B and C."""
    a, b, c, bias = rest
    batch, length, heads, channels = x.shape
    num_chunks = -(-length // chunk)
    cumulative = dt.new_empty((2, batch, heads, num_chunks, chunk), dtype=torch.float32)
    states = x.new_empty((batch, num_chunks, heads, channels, b.shape[-1]), dtype=torch.float32)
    between = x.new_empty((batch, num_chunks, b.shape[2], chunk, chunk), dtype=torch.float32)
    _, of_states, of_chunks = _products(chunk, x, b)
    _launch("chunk_cumsum", [t for t in (dt, a, bias) if t is not None], [cumulative], ())
    _launch("chunk_state", [b, x, cumulative], [states], of_states)
    _launch("state_passing", [states, cumulative], [states], ())
    _launch("bmm_chunk", [c, b], [between], of_chunks)
    return cumulative, states, between


def _products(chunk: int, x: Tensor, b: Tensor) -> tuple[Products, Products, Products]:
    """Return the products of the outputs, of the states and of B with C."""
    batch, length, heads, channels = x.shape
    num_chunks, groups, num_states = batch * -(-length // chunk), b.shape[2], b.shape[-1]
    of_states: Products = ((num_chunks * heads, channels, num_states, chunk),)
    return _output_products(chunk, x, b), of_states, ((num_chunks * groups, chunk, chunk, num_states),)


def _output_products(chunk: int, x: Tensor, b: Tensor) -> Products:
    batch, length, heads, channels = x.shape
    num = batch * -(-length // chunk) * heads
    return (num, chunk, channels, chunk), (num, chunk, channels, b.shape[-1])


def _launch(name: str, inputs: list[Tensor], outputs: list[Tensor], products: Products) -> None:
    dtype = str(inputs[0].dtype if inputs[0].dtype.itemsize == 2 else torch.bfloat16).removeprefix("torch.")
    work = Work(family="gemm", products=products, dtype=dtype) if products else Work()
    record_kernel(f"mamba_ssm::{name}", inputs=inputs, outputs=outputs, work=work)
