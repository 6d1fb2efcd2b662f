"""Norms, gated layers, and a whole transformer layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from sandtable.vgpu.packages.transformer_engine import layers as kernels
from sandtable.vgpu.packages.transformer_engine.modules.attention import DotProductAttention
from sandtable.vgpu.packages.transformer_engine.modules.linear import Linear, TransformerEngineBaseModule

__all__ = ["LayerNorm", "LayerNormLinear", "LayerNormMLP", "MultiheadAttention", "RMSNorm", "TransformerLayer"]

_NUMBERS = {torch.float32: 4, torch.float16: 5, torch.bfloat16: 6}


class _Norm(torch.autograd.Function):
    """A layer norm, or an RMS norm if there is no bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        rest = (eps, None, None, _NUMBERS[x.dtype], 0, False)
        if bias is None:
            output, means, deviations = kernels.rmsnorm_fwd(x, weight, *rest)
        else:
            output, means, deviations = kernels.layernorm_fwd(x, weight, bias, *rest)
        ctx.save_for_backward(x, weight, deviations, *([] if means is None else [means]))
        result: Tensor = output
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, deviations, *means = ctx.saved_tensors
        grad = gradients[0].contiguous()
        if means:
            return (*kernels.layernorm_bwd(grad, x, means[0], deviations, weight, 0, False), None)
        return (*kernels.rmsnorm_bwd(grad, x, deviations, weight, 0, False), None, None)


class LayerNorm(Module):
    """Layer norm over the last dim."""

    with_bias = True

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        hidden_size: int | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        shape: Any = normalized_shape if normalized_shape is not None else hidden_size
        width = shape if isinstance(shape, int) else list(shape)[-1]
        kind = params_dtype or dtype or torch.get_default_dtype()
        self.eps, self.zero_centered_gamma, self.sequence_parallel = eps, zero_centered_gamma, sequence_parallel
        self.weight = Parameter(torch.ones(width, dtype=kind, device=device))
        self.bias = Parameter(torch.zeros(width, dtype=kind, device=device)) if self.with_bias else None
        for parameter in self.parameters():
            parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inp: Tensor) -> Tensor:
        output: Tensor = _Norm.apply(inp, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return output


class RMSNorm(LayerNorm):
    """RMS norm over the last dim."""

    with_bias = False


class LayerNormLinear(Linear):
    """A norm and a linear layer."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        *,
        normalization: str = "LayerNorm",
        return_layernorm_output: bool = False,
        zero_centered_gamma: bool = False,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, params_dtype=params_dtype, device=device, **options)
        dtype = self.weight.dtype
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.layer_norm_weight = Parameter(torch.ones(in_features, dtype=dtype, device=device))
        self.layer_norm_bias = None
        if normalization == "LayerNorm":
            self.layer_norm_bias = Parameter(torch.zeros(in_features, dtype=dtype, device=device))
        for parameter in (self.layer_norm_weight, self.layer_norm_bias):
            if parameter is not None:
                parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **options: Any) -> Any:
        normal = _Norm.apply(inp, self.layer_norm_weight, self.layer_norm_bias, self.eps)  # type: ignore[no-untyped-call]
        output = super().forward(normal, is_first_microbatch)
        if not self.return_layernorm_output:
            return output
        return (*output, normal) if isinstance(output, tuple) else (output, normal)


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        ctx.save_for_backward(x)
        output: Tensor = getattr(kernels, name)(x, None)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return getattr(kernels, f"d{ctx.name}")(gradients[0].contiguous(), x, None), None


class LayerNormMLP(TransformerEngineBaseModule):
    """A norm and two linear layers with an activation between them."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        tp_group: Any = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        super().__init__(tp_group=tp_group, tp_size=tp_size, sequence_parallel=sequence_parallel)
        shared: dict[str, Any] = {
            "tp_group": tp_group,
            "tp_size": tp_size,
            "sequence_parallel": sequence_parallel,
            "params_dtype": params_dtype,
            "device": device,
            "bias": bias,
        }
        width = ffn_hidden_size * (2 if activation.endswith("glu") else 1)
        self.activation = activation
        self.fc1 = LayerNormLinear(
            hidden_size, width, eps, normalization=normalization, parallel_mode="column", **shared
        )
        self.fc2 = Linear(ffn_hidden_size, hidden_size, parallel_mode="row", **shared)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        output: Tensor = self.fc2(_Activation.apply(self.fc1(inp), self.activation))  # type: ignore[no-untyped-call]
        return output


class MultiheadAttention(TransformerEngineBaseModule):
    """Attention with its projections."""

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        attn_mask_type: str = "causal",
        normalization: str = "LayerNorm",
        qkv_format: str = "sbhd",
        tp_group: Any = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        bias: bool = True,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        super().__init__(tp_group=tp_group, tp_size=tp_size, sequence_parallel=sequence_parallel)
        self.head_dim = hidden_size // num_attention_heads
        self.num_heads = num_attention_heads // tp_size
        self.num_groups = (num_gqa_groups or num_attention_heads) // tp_size
        self.qkv_format = qkv_format
        shared: dict[str, Any] = {
            "tp_group": tp_group,
            "tp_size": tp_size,
            "sequence_parallel": sequence_parallel,
            "params_dtype": params_dtype,
            "device": device,
            "bias": bias,
        }
        width = (self.num_heads + 2 * self.num_groups) * self.head_dim * tp_size
        self.layernorm_qkv = LayerNormLinear(
            hidden_size, width, layernorm_epsilon, normalization=normalization, parallel_mode="column", **shared
        )
        self.core_attention = DotProductAttention(
            num_attention_heads,
            self.head_dim,
            num_gqa_groups=num_gqa_groups,
            attention_dropout=attention_dropout,
            attn_mask_type=attn_mask_type,
            qkv_format=qkv_format,
            tp_size=tp_size,
        )
        self.proj = Linear(hidden_size, hidden_size, parallel_mode="row", **shared)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Tensor:
        mixed = self.layernorm_qkv(hidden_states)
        mixed = mixed.view(*mixed.shape[:-1], -1, self.head_dim)
        query, key, value = mixed.split([self.num_heads, self.num_groups, self.num_groups], dim=-2)
        output: Tensor = self.proj(self.core_attention(query, key, value, attention_mask))
        return output


class TransformerLayer(Module):
    """Attention and two linear layers, each added to its input."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        *,
        hidden_dropout: float = 0.1,
        self_attn_mask_type: str = "causal",
        activation: str = "gelu",
        normalization: str = "LayerNorm",
        attn_input_format: str = "sbhd",
        **options: Any,
    ) -> None:
        super().__init__()
        known = ("tp_group", "tp_size", "sequence_parallel", "bias", "params_dtype", "device")
        shared = {name: options[name] for name in known if name in options}
        self.hidden_dropout = hidden_dropout
        self.self_attention = MultiheadAttention(
            hidden_size,
            num_attention_heads,
            num_gqa_groups=options.get("num_gqa_groups"),
            attention_dropout=options.get("attention_dropout", 0.1),
            attn_mask_type=self_attn_mask_type,
            normalization=normalization,
            qkv_format=attn_input_format,
            **shared,
        )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size, ffn_hidden_size, activation=activation, normalization=normalization, **shared
        )

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Tensor:
        attended = self.self_attention(hidden_states, attention_mask)
        hidden_states = hidden_states + torch.dropout(attended, self.hidden_dropout, self.training)
        return hidden_states + torch.dropout(self.layernorm_mlp(hidden_states), self.hidden_dropout, self.training)
