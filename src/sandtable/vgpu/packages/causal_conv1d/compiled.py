"""The functions of `causal_conv1d_cuda`, which write where they are told to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["causal_conv1d_bwd", "causal_conv1d_fwd", "causal_conv1d_update"]


def causal_conv1d_fwd(
    x: Tensor, weight: Tensor, bias: Any, seq_idx: Any, states: Any, out: Tensor, final_states: Any, silu: bool
) -> None:
    """Convolve."""
    _launch("causal_conv1d_fwd", [x, weight, bias, seq_idx, states], [out, final_states])


def causal_conv1d_bwd(
    x: Tensor, weight: Tensor, bias: Any, dout: Tensor, seq_idx: Any, states: Any, dfinal: Any, dx: Tensor,
    dweight: Tensor, dbias: Any, dstates: Any, silu: bool,
) -> None:  # fmt: skip
    """Differentiate; the activation is computed again."""
    _launch("causal_conv1d_bwd", [x, weight, bias, dout, seq_idx, states, dfinal], [dx, dweight, dbias, dstates])


def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Any, out: Tensor, *_: Any) -> None:
    """Convolve one more position: generation."""
    _launch("causal_conv1d_update", [x, conv_state, weight, bias], [out, conv_state])


def _launch(name: str, inputs: list[Tensor | None], outputs: list[Tensor | None]) -> None:
    read, written = ([x for x in tensors if isinstance(x, torch.Tensor)] for tensors in (inputs, outputs))
    record_kernel(f"causal_conv1d::{name}", inputs=read, outputs=written, work=Work())
