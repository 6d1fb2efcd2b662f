"""`bitsandbytes.nn` and what it needs of `functional`, where it is not installed: weights of 4 and 8 bits.

As in the package, a weight is quantized when it moves to the card: two numbers of 4 bits in a byte, with a float32 per
64 of them (or, compressed twice, a byte and a float32 per 256 of those). A product turns the weight into the type of
its input first, in a buffer of its size, forward and again backward. A weight of 8 bits is multiplied as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = [
    "Int8Params",
    "Linear4bit",
    "Linear8bitLt",
    "LinearFP4",
    "LinearNF4",
    "Params4bit",
    "QuantState",
    "dequantize_4bit",
    "matmul_4bit",
    "quantize_4bit",
]


@dataclass
class QuantState:
    """What is needed to turn a quantized tensor back."""

    absmax: Tensor
    shape: torch.Size
    dtype: torch.dtype
    blocksize: int = 64
    quant_type: str = "nf4"
    nested: bool = False
    state2: Any = None


def quantize_4bit(
    A: Tensor,  # noqa: N803
    absmax: Any = None,
    out: Any = None,
    blocksize: int = 64,
    compress_statistics: bool = False,
    quant_type: str = "fp4",
    quant_storage: torch.dtype = torch.uint8,
) -> tuple[Tensor, QuantState]:
    """Return a tensor in 4 bits, and what turns it back."""
    size = -(-A.numel() // 2) // torch.empty(0, dtype=quant_storage).element_size()
    packed = A.new_empty((size, 1), dtype=quant_storage)
    num_blocks = -(-A.numel() // blocksize)
    scales = A.new_empty(num_blocks, dtype=torch.float32)
    record_kernel("bitsandbytes::quantize_4bit", inputs=[A], outputs=[packed, scales], work=Work())
    state = QuantState(scales, A.shape, A.dtype, blocksize, quant_type)
    if compress_statistics:
        small = A.new_empty(num_blocks, dtype=torch.uint8)
        nested = A.new_empty(-(-num_blocks // 256), dtype=torch.float32)
        record_kernel("bitsandbytes::quantize_blockwise", inputs=[scales], outputs=[small, nested], work=Work())
        state = QuantState(small, A.shape, A.dtype, blocksize, quant_type, nested=True, state2=nested)
    return packed, state


def dequantize_4bit(A: Tensor, quant_state: QuantState, **_: Any) -> Tensor:  # noqa: N803
    """Return the tensor that was quantized."""
    scales = quant_state.absmax
    if quant_state.nested:
        scales = scales.new_empty(scales.shape, dtype=torch.float32)
        nested = [quant_state.absmax, quant_state.state2]
        record_kernel("bitsandbytes::dequantize_blockwise", inputs=nested, outputs=[scales], work=Work())
    out = A.new_empty(quant_state.shape, dtype=quant_state.dtype)
    record_kernel("bitsandbytes::dequantize_4bit", inputs=[A, scales], outputs=[out], work=Work())
    return out


def matmul_4bit(A: Tensor, B: Tensor, quant_state: QuantState, out: Any = None, bias: Tensor | None = None) -> Tensor:  # noqa: N803
    """Multiply with the transpose of a weight of 4 bits."""
    result: Tensor = _Product4bit.apply(A, B, quant_state, bias)  # type: ignore[no-untyped-call]
    return result


class _Product4bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, state: QuantState, bias: Tensor | None) -> Tensor:
        ctx.packed, ctx.state, ctx.has_bias = packed, state, bias is not None
        return nn.functional.linear(x, dequantize_4bit(packed.detach(), state).to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        dbias = grad.flatten(0, -2).sum(0) if ctx.has_bias else None
        weight = dequantize_4bit(ctx.packed.detach(), ctx.state).to(grad.dtype)
        return grad @ weight, None, None, dbias


class _Quantized(nn.Parameter):
    """A weight that is quantized when it moves to the card."""

    def _quantize(self) -> Any:
        raise NotImplementedError

    def cuda(self, device: Any = None, *_: Any, **__: Any) -> Any:
        return self.to(
            "cuda" if device is None else torch.device("cuda", device) if isinstance(device, int) else device
        )

    def to(self, *args: Any, **options: Any) -> Any:
        device, *_ = torch._C._nn._parse_to(*args, **options)
        moves = device is not None and device.type == "cuda" and self.device.type != "meta"
        if moves and not self.__dict__.get("bnb_quantized"):
            self.data = self.data.to(device)
            return self._quantize()
        moved = self.data.to(*args, **options) if not self.__dict__.get("bnb_quantized") else self.data.to(device)
        return self._copy(moved)

    def _copy(self, data: Tensor) -> Self:
        copy = type(self)(data, requires_grad=False)
        copy.__dict__.update(self.__dict__)
        return copy


class Params4bit(_Quantized):
    """A weight of 4 bits."""

    def __new__(
        cls, data: Tensor | None = None, requires_grad: bool = False, quant_state: Any = None, blocksize: int = 64,
        compress_statistics: bool = True, quant_type: str = "fp4", quant_storage: torch.dtype = torch.uint8,
        module: Any = None, bnb_quantized: bool = False, **_: Any,
    ) -> Params4bit:  # fmt: skip
        made = torch.Tensor._make_subclass(cls, torch.empty(0) if data is None else data, requires_grad)
        made.__dict__.update(
            quant_state=quant_state, blocksize=blocksize, compress_statistics=compress_statistics,
            quant_type=quant_type, quant_storage=quant_storage, module=module, bnb_quantized=bnb_quantized,
        )  # fmt: skip
        return made

    def _quantize(self) -> Params4bit:
        own = self.__dict__
        packed, state = quantize_4bit(
            self.data, blocksize=own["blocksize"], compress_statistics=own["compress_statistics"],
            quant_type=own["quant_type"], quant_storage=own["quant_storage"],
        )  # fmt: skip
        own.update(quant_state=state, bnb_quantized=True)
        if own["module"] is not None:
            own["module"].quant_state = state
        return self._copy(packed)


class Int8Params(_Quantized):
    """A weight of 8 bits, with a float32 per row."""

    def __new__(
        cls, data: Tensor | None = None, requires_grad: bool = True, has_fp16_weights: bool = False, CB: Any = None,  # noqa: N803
        SCB: Any = None, **_: Any,  # noqa: N803
    ) -> Int8Params:  # fmt: skip
        made = torch.Tensor._make_subclass(cls, torch.empty(0) if data is None else data, requires_grad)
        made.__dict__.update(has_fp16_weights=has_fp16_weights, CB=CB, SCB=SCB, bnb_quantized=False)
        return made

    def _quantize(self) -> Int8Params:
        if self.__dict__["has_fp16_weights"]:
            return self._copy(self.data)
        small, scales = _quantize_rows(self.data)
        self.__dict__.update(CB=small, SCB=scales, bnb_quantized=True)
        return self._copy(small)


class Linear4bit(nn.Linear):
    """A linear layer with a weight of 4 bits."""

    def __init__(
        self, input_features: int, output_features: int, bias: bool = True, compute_dtype: torch.dtype | None = None,
        compress_statistics: bool = True, quant_type: str = "fp4", quant_storage: torch.dtype = torch.uint8,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_features, output_features, bias, device)
        self.weight = Params4bit(
            self.weight.data, compress_statistics=compress_statistics, quant_type=quant_type,
            quant_storage=quant_storage, module=self,
        )  # fmt: skip
        self.compute_dtype, self.quant_state = compute_dtype, None

    def forward(self, x: Tensor) -> Tensor:
        state = getattr(self.weight, "quant_state", None) or self.quant_state
        assert state is not None, "a weight of 4 bits must be on the card before it is used"
        bias = None if self.bias is None else self.bias.to(x.dtype)
        inner = x if self.compute_dtype is None else x.to(self.compute_dtype)
        return matmul_4bit(inner, self.weight, state, bias=bias).to(x.dtype)


class LinearNF4(Linear4bit):
    """The same in the type nf4."""

    def __init__(self, input_features: int, output_features: int, bias: bool = True, **options: Any) -> None:
        super().__init__(input_features, output_features, bias, **{**options, "quant_type": "nf4"})


class LinearFP4(Linear4bit):
    """The same in the type fp4."""


class Linear8bitLt(nn.Linear):
    """A linear layer that multiplies integers of 8 bits (LLM.int8())."""

    def __init__(
        self, input_features: int, output_features: int, bias: bool = True, has_fp16_weights: bool = True,
        threshold: float = 0.0, index: Any = None, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_features, output_features, bias, device)
        self.weight = Int8Params(self.weight.data, has_fp16_weights=has_fp16_weights, requires_grad=has_fp16_weights)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Product8bit.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result


class _Product8bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        small, _ = _quantize_rows(rows)
        kept = weight.detach() if weight.dtype == torch.int8 else _quantize_rows(weight.detach())[0]
        total = x.new_empty((len(rows), len(kept)), dtype=torch.int32)
        products = ((1, len(rows), len(kept), rows.shape[1]),)
        work = Work(family="gemm", products=products, dtype="int8")
        record_kernel("bitsandbytes::int8_linear_matmul", inputs=[small, kept], outputs=[total], work=work)
        out = x.new_empty(total.shape)
        record_kernel("bitsandbytes::int8_mm_dequant", inputs=[total], outputs=[out], work=Work())
        ctx.save_for_backward(x, kept)
        ctx.needs_weight, ctx.has_bias = weight.requires_grad, bias is not None
        out = out if bias is None else out + bias.to(out.dtype)
        return out.view(*x.shape[:-1], len(kept))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, kept = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        dweight = rows.t() @ x.reshape(-1, x.shape[-1]).to(rows.dtype) if ctx.needs_weight else None
        return grad @ kept.to(grad.dtype), dweight, rows.sum(0) if ctx.has_bias else None


def _quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    small, scales = torch.empty_like(x, dtype=torch.int8), x.new_empty(x.shape[0], dtype=torch.float32)
    record_kernel("bitsandbytes::int8_vectorwise_quant", inputs=[x], outputs=[small, scales], work=Work())
    return small, scales
