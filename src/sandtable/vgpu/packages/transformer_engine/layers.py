"""Layers between products: norms, activations, softmax, rotary embedding, dropout.

Each is one pass over memory. A norm or an activation that feeds an FP8 product writes FP8 itself where the scale is
known beforehand (delayed scaling); for other recipes the cast is a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.transformer_engine.kernels import launch
from sandtable.vgpu.packages.transformer_engine.quantization import buffers, new_tensor, quantize, torch_type

_UNARY = ("gelu", "qgelu", "relu", "srelu", "silu")
_GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu", "situglu")
_SOFTMAX = ("scaled_softmax", "scaled_masked_softmax", "scaled_upper_triang_masked_softmax",
            "scaled_aligned_causal_masked_softmax")  # fmt: skip

__all__ = [
    "dropout_bwd",
    "dropout_fwd",
    "fused_qkv_rope_backward",
    "fused_qkv_rope_forward",
    "fused_rope_backward",
    "fused_rope_forward",
    "layernorm_bwd",
    "layernorm_fwd",
    "rmsnorm_bwd",
    "rmsnorm_bwd_add",
    "rmsnorm_fwd",
]


def layernorm_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: Any,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Any, Tensor | None, Tensor]:
    means = torch.empty(prod(input.shape[:-1]), dtype=torch.float32, device=input.device)
    output, deviations = _norm("layernorm_fwd", (input, weight, bias), (ln_out, quantizer, otype), means)
    return output, means, deviations


def rmsnorm_fwd(
    input: Tensor,
    weight: Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: Any,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Any, Tensor | None, Tensor]:
    output, deviations = _norm("rmsnorm_fwd", (input, weight, None), (ln_out, quantizer, otype), None)
    return output, None, deviations


def _norm(
    name: str, inputs: tuple[Tensor, Tensor, Tensor | None], result: tuple[Any, Any, Any], means: Tensor | None
) -> tuple[Any, Tensor]:
    output, quantizer, otype = result
    deviations = torch.empty(prod(inputs[0].shape[:-1]), dtype=torch.float32, device=inputs[0].device)
    output = _write(name, inputs, output, quantizer, torch_type(otype), (means, deviations))
    return output, deviations


def _write(
    name: str,
    inputs: tuple[Tensor | None, ...],
    output: Any,
    quantizer: Any,
    dtype: torch.dtype,
    rest: tuple[Tensor | None, ...] = (),
    shape: tuple[int, ...] | None = None,
    family: Any = "normalisation",
) -> Any:
    """Record a kernel whose result may be cast by it, or by a kernel after it."""
    shape = tuple(inputs[0].shape) if shape is None else shape  # type: ignore[union-attr]
    casts = quantizer is None or type(quantizer).__name__ == "Float8Quantizer"
    is_given = output is not None and casts
    written = output if is_given else new_tensor(shape, dtype, quantizer if casts else None)
    launch(name, inputs, [*buffers(written), *rest], family)
    return written if casts else quantize(written, quantizer, output)


def layernorm_bwd(
    dz: Tensor, x: Tensor, mu: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)
    launch("layernorm_bwd", [dz, x, mu, rsigma, gamma], gradients, _BACKWARD)
    return gradients


def rmsnorm_bwd(
    dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> tuple[Tensor, Tensor]:
    gradients = torch.empty_like(x), torch.empty_like(gamma)
    launch("rmsnorm_bwd", [dz, x, rsigma, gamma], gradients, _BACKWARD)
    return gradients


def rmsnorm_bwd_add(
    dz: Tensor, x: Tensor, add: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool
) -> tuple[Tensor, Tensor]:
    gradients = torch.empty_like(x), torch.empty_like(gamma)
    launch("rmsnorm_bwd_add", [dz, x, add, rsigma, gamma], gradients, _BACKWARD)
    return gradients


_BACKWARD = Work(family="normalisation", num_kernels=2)
"""The second kernel adds up the partial gradients of the weights."""


def _activation(name: str) -> Callable[..., Any]:
    gated = name in _GATED

    def activate(input: Tensor, quantizer: Any, *settings: Any, **options: Any) -> Any:
        width = input.shape[-1] // 2 if gated else input.shape[-1]
        shape = (*input.shape[:-1], width)
        return _write(name, (input,), None, quantizer, input.dtype, shape=shape, family="elementwise")

    return activate


def _activation_backward(name: str) -> Callable[..., Any]:
    def differentiate(grad: Tensor, fwd_input: Tensor, quantizer: Any, *settings: Any, **options: Any) -> Any:
        inputs = (fwd_input, grad)
        return _write(name, inputs, None, quantizer, fwd_input.dtype, family="elementwise")

    return differentiate


def _bias_and_activation_backward(name: str) -> Callable[..., Any]:
    def differentiate(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> tuple[Tensor, Any]:
        bias_gradient = torch.empty(fwd_input.shape[-1], dtype=fwd_input.dtype, device=grad.device)
        inputs = (fwd_input, grad)
        output = _write(name, inputs, None, quantizer, fwd_input.dtype, (bias_gradient,), family="elementwise")
        return bias_gradient, output

    return differentiate


def _scaled_activation(name: str) -> Callable[..., Any]:
    """Return an activation that also weighs each token by the probability of its expert."""

    def activate(input: Tensor, act_scales: Tensor, quantizer: Any, *settings: Any, **options: Any) -> Any:
        width = input.shape[-1] if name == "scaled_srelu" else input.shape[-1] // 2
        shape = (*input.shape[:-1], width)
        return _write(name, (input, act_scales), None, quantizer, input.dtype, shape=shape, family="elementwise")

    return activate


def _scaled_activation_backward(name: str) -> Callable[..., Any]:
    def differentiate(
        grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, *settings: Any, **options: Any
    ) -> tuple[Any, Tensor]:
        scale_gradient = torch.empty_like(act_scales)
        inputs = (fwd_input, grad, act_scales)
        output = _write(name, inputs, None, quantizer, fwd_input.dtype, (scale_gradient,), family="elementwise")
        return output, scale_gradient

    return differentiate


def _softmax(name: str) -> Callable[..., Tensor]:
    def forward(input: Tensor, *mask_and_scale: Any) -> Tensor:
        output = torch.empty_like(input)
        mask = next((argument for argument in mask_and_scale if isinstance(argument, Tensor)), None)
        launch(name, [input, mask], [output], "normalisation")
        return output

    return forward


def _softmax_backward(name: str) -> Callable[..., Tensor]:
    def backward(grad: Tensor, softmax: Tensor, scale: float) -> Tensor:
        launch(name, [grad, softmax], [grad], "normalisation")  # in place
        return grad

    return backward


def _derivative(name: str) -> str:
    return f"clamped_d{name.removeprefix('clamped_')}" if name.startswith("clamped_") else f"d{name}"


for _name in (*_UNARY, *_GATED):
    globals()[_name] = _activation(_name)
    globals()[_derivative(_name)] = _activation_backward(_derivative(_name))
    __all__ += [_name, _derivative(_name)]
for _name in _UNARY:
    globals()[f"dbias_d{_name}"] = _bias_and_activation_backward(f"dbias_d{_name}")
    __all__ += [f"dbias_d{_name}"]
for _name in ("swiglu", "situglu", "clamped_swiglu", "srelu"):
    globals()[f"scaled_{_name}"] = _scaled_activation(f"scaled_{_name}")
    globals()[f"scaled_{_derivative(_name)}"] = _scaled_activation_backward(f"scaled_{_derivative(_name)}")
    __all__ += [f"scaled_{_name}", f"scaled_{_derivative(_name)}"]
for _name in _SOFTMAX:
    globals()[f"{_name}_forward"] = _softmax(f"{_name}_forward")
    globals()[f"{_name}_backward"] = _softmax_backward(f"{_name}_backward")
    __all__ += [f"{_name}_forward", f"{_name}_backward"]


def fused_rope_forward(input: Tensor, freqs: Tensor, *settings: Any) -> Tensor:
    output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    launch("fused_rope_forward", [input, freqs], [output], "elementwise")
    return output


def fused_rope_backward(output_grads: Tensor, freqs: Tensor, *settings: Any) -> Tensor:
    gradient = torch.empty(output_grads.shape, dtype=output_grads.dtype, device=output_grads.device)
    launch("fused_rope_backward", [output_grads, freqs], [gradient], "elementwise")
    return gradient


def fused_qkv_rope_forward(
    qkv_input: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    start_positions: Tensor | None,
    qkv_split_arg_list: list[int],
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split queries, keys and values, and turn the first two."""
    *outer, heads, width = qkv_input.shape
    query_width, key_width, value_width = qkv_split_arg_list
    head_dim = width - query_width - value_width if key_width == 0 else key_width
    parts = [
        torch.empty((*outer, heads * part // head_dim, head_dim), dtype=qkv_input.dtype, device=qkv_input.device)
        for part in (query_width, key_width, value_width)
    ]
    launch("fused_qkv_rope_forward", [qkv_input, q_freqs, k_freqs], parts, "elementwise")
    return parts[0], parts[1], parts[2]


def fused_qkv_rope_backward(
    q_grad: Tensor,
    k_grad: Tensor,
    v_grad: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    qkv_split_arg_list: list[int],
    *settings: Any,
) -> Tensor:
    *outer, heads, head_dim = v_grad.shape
    groups = heads * head_dim // qkv_split_arg_list[2]
    gradient = torch.empty((*outer, groups, sum(qkv_split_arg_list)), dtype=q_grad.dtype, device=q_grad.device)
    launch("fused_qkv_rope_backward", [q_grad, k_grad, v_grad, q_freqs, k_freqs], [gradient], "elementwise")
    return gradient


def dropout_fwd(input: Tensor, dropout_probability: float, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the output and a mask of one bit per element."""
    output = torch.empty_like(input) if out is None else out
    mask = torch.empty((input.numel() + 7) // 8, dtype=torch.uint8, device=input.device)
    launch("dropout_fwd", [input], [output, mask], "elementwise")
    return output, mask


def dropout_bwd(
    grad_output: Tensor, mask: Tensor, dropout_probability: float, grad_input: Tensor | None = None
) -> Tensor:
    gradient = torch.empty_like(grad_output) if grad_input is None else grad_input
    launch("dropout_bwd", [grad_output, mask], [gradient], "elementwise")
    return gradient
