"""`mamba_ssm.ops.selective_scan_interface`, where mamba_ssm is not installed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.causal_conv1d.functions import causal_conv1d_fn
from sandtable.vgpu.packages.kernels import record_kernel
from sandtable.vgpu.packages.mamba_ssm import compiled

__all__ = ["mamba_inner_fn", "selective_scan_fn", "selective_scan_ref", "selective_state_update"]


def selective_scan_fn(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any = None, z: Any = None, delta_bias: Any = None,  # noqa: N803
    delta_softplus: bool = False, return_last_state: bool = False,
) -> Any:  # fmt: skip
    """Scan (batch, channels, length); with z the result is gated."""
    out = _Scan.apply(delta_softplus, u, delta, A, B, C, D, z, delta_bias)  # type: ignore[no-untyped-call]
    return (out, u.new_empty(*u.shape[:2], A.shape[1], dtype=torch.float32)) if return_last_state else out


def selective_scan_ref(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any = None, z: Any = None, delta_bias: Any = None,  # noqa: N803
    delta_softplus: bool = False, return_last_state: bool = False,
) -> Any:  # fmt: skip
    """Scan as `selective_scan_fn` does, step by step with operators of torch."""
    step = delta.float() if delta_bias is None else delta.float() + delta_bias.float()[:, None]
    step = torch.nn.functional.softplus(step) if delta_softplus else step
    b, c = (_per_channel(y.float(), u.shape) for y in (B, C))  # (batch, channels, states, length)
    state = u.new_zeros(*u.shape[:2], A.shape[1], dtype=torch.float32)
    outputs = []
    for k in range(u.shape[2]):
        now = step[:, :, k, None]
        state = torch.exp(now * A.float()) * state + now * b[..., k] * u[:, :, k, None].float()
        outputs.append((state * c[..., k]).sum(-1))
    out = torch.stack(outputs, dim=2)
    out = out if D is None else out + u.float() * D.float()[:, None]
    out = (out if z is None else out * torch.nn.functional.silu(z.float())).to(u.dtype)
    return (out, state) if return_last_state else out


def _per_channel(y: Tensor, shape: torch.Size) -> Tensor:
    """Return (channels, states), or (batch[, groups], states, length), for every batch, channel and step."""
    batch, channels, length = shape
    if y.dim() == 2:
        return y[None, :, :, None].expand(batch, -1, -1, length)
    return (
        y[:, None].expand(-1, channels, -1, -1) if y.dim() == 3 else y.repeat_interleave(channels // y.shape[1], dim=1)
    )


def mamba_inner_fn(
    xz: Tensor, conv1d_weight: Tensor, conv1d_bias: Any, x_proj_weight: Tensor, delta_proj_weight: Tensor,
    out_proj_weight: Tensor, out_proj_bias: Any, A: Tensor, B: Any = None, C: Any = None, D: Any = None,  # noqa: N803
    delta_bias: Any = None, B_proj_bias: Any = None, C_proj_bias: Any = None, delta_softplus: bool = True, **_: Any,  # noqa: N803
) -> Tensor:  # fmt: skip
    """Run a whole block of Mamba 1: convolution, projections, scan and output."""
    x, z = xz.chunk(2, dim=1)
    x = causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
    projected = torch.nn.functional.linear(x.transpose(1, 2).flatten(0, 1), x_proj_weight)
    rank, num_states = delta_proj_weight.shape[1], A.shape[1]
    step, b, c = torch.split(projected, [rank, num_states, projected.shape[1] - rank - num_states], dim=1)
    delta = (delta_proj_weight @ step.t()).view(x.shape[1], x.shape[0], x.shape[2]).transpose(0, 1)
    b, c = (y.view(x.shape[0], 1, x.shape[2], -1).transpose(2, 3).contiguous() for y in (b, c))
    out = selective_scan_fn(x, delta, A, b, c, D, z, delta_bias, delta_softplus)
    result: Tensor = torch.nn.functional.linear(out.transpose(1, 2), out_proj_weight, out_proj_bias)
    return result


def selective_state_update(state: Tensor, x: Tensor, *args: Any, **options: Any) -> Tensor:
    """Make one step of a scan: generation."""
    out = torch.empty_like(x)
    inputs = [state, x, *(value for value in (*args, *options.values()) if isinstance(value, Tensor))]
    record_kernel("mamba_ssm::selective_state_update", inputs=inputs, outputs=[state, out], work=Work())
    return out


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, softplus: bool, u: Tensor, delta: Tensor, *rest: Any) -> Tensor:
        a, b, c, d, z, bias = rest
        out, states, *gated = compiled.fwd(u, delta, a, b, c, d, z, bias, softplus)
        ctx.save_for_backward(u, delta, a, b, c, d, z, bias, states, out if z is not None else None)
        return gated[0] if gated else out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        u, delta, a, b, c, d, z, bias, states, out = ctx.saved_tensors
        du, ddelta, da, db, dc, dd, dbias, *dz = compiled.bwd(
            u, delta, a, b, c, d, z, bias, dout, states, out, None, True, False
        )
        db, dc = db.to(b.dtype), dc.to(c.dtype)
        return None, du, ddelta, da, db, dc, dd, dz[0] if dz else None, dbias
