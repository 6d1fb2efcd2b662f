"""Linear layers: products in the type of their inputs or in FP8, with tensor and sequence parallelism.

Column-parallel layers gather the sequence before the product and reduce gradients after it; row-parallel ones reduce
the output. A weight's gradient is added to its `main_grad`, in float32, if the layer is told to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter

from sandtable.vgpu.packages.transformer_engine.modules.recipe import FP8GlobalStateManager, Recipe, cast
from sandtable.vgpu.packages.transformer_engine.products import generic_gemm, te_general_grouped_gemm
from sandtable.vgpu.packages.transformer_engine.quantization import fp8_transpose

__all__ = ["GroupedLinear", "Linear", "TransformerEngineBaseModule", "get_dummy_wgrad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Along which axis a layer is cut, and among whom."""

    mode: str | None
    group: Any
    size: int
    sequence: bool

    @property
    def gathers(self) -> bool:
        return self.mode == "column" and self.sequence and self.size > 1

    def after(self, output: Tensor, *, mode: str) -> Tensor:
        """Add up partial sums over the group: along the sequence, or everywhere."""
        if self.mode != mode or self.size == 1:
            return output
        if not self.sequence:
            dist.all_reduce(output, group=self.group)
            return output
        part = output.new_empty((output.shape[0] // self.size, *output.shape[1:]))
        dist.reduce_scatter_tensor(part, output.contiguous(), group=self.group)
        return part

    def gathered(self, tensor: Tensor) -> Tensor:
        whole = tensor.new_empty((tensor.shape[0] * self.size, *tensor.shape[1:]))
        dist.all_gather_into_tensor(whole, tensor.contiguous(), group=self.group)
        return whole


class _Product(torch.autograd.Function):
    """x · weightᵀ + bias, and its gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, parallelism: Parallelism, accumulates: bool
    ) -> Tensor:
        recipe = FP8GlobalStateManager.recipe
        ctx.recipe, ctx.parallelism, ctx.accumulates = recipe, parallelism, accumulates
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)
        source = _gather(_operand(x, recipe, columns=not parallelism.gathers), parallelism)
        product = multiply(_operand(weight, recipe, columns=x.requires_grad), source, "TN", bias=bias, dtype=x.dtype)
        return parallelism.after(product, mode="row")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        recipe, parallelism = ctx.recipe, ctx.parallelism
        incoming = gradients[0].contiguous()
        if parallelism.mode == "row" and parallelism.sequence and parallelism.size > 1:
            incoming = parallelism.gathered(incoming)
        grad = _operand(incoming, recipe, columns=True)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            whole = multiply(_operand(weight, recipe, columns=True, cast_again=False), grad, "NN", dtype=x.dtype)
            grad_x = parallelism.after(whole, mode="column")
        if ctx.needs_input_grad[1]:
            source = _gather(_operand(x, recipe, columns=True, cast_again=parallelism.gathers), parallelism)
            grad_weight = weight_gradient(source, grad, weight, accumulates=ctx.accumulates)
        if ctx.has_bias:
            grad_bias = incoming.reshape(-1, incoming.shape[-1]).sum(0)
        return grad_x, grad_weight, grad_bias, None, None


def _operand(tensor: Tensor, recipe: Recipe | None, *, columns: bool, cast_again: bool = True) -> Any:
    """Return what a product reads. A copy that the forward pass has made is not made again."""
    if recipe is None:
        return tensor
    if cast_again:
        return cast(tensor, recipe, columns=columns)
    from sandtable.vgpu.packages.transformer_engine.modules.recipe import CastTensor

    data = torch.empty(tensor.shape, dtype=torch.uint8, device=tensor.device)
    return CastTensor(data, None, tensor.dtype)


def _gather(operand: Any, parallelism: Parallelism) -> Any:
    """Gather the sequence, in the type that is multiplied; columns are made afterwards."""
    if not parallelism.gathers:
        return operand
    if isinstance(operand, Tensor):
        return parallelism.gathered(operand)
    operand._data = parallelism.gathered(operand._data)
    operand._transpose = fp8_transpose(operand._data, None)
    return operand


def multiply(
    a: Any, b: Any, layout: str, *, dtype: torch.dtype, bias: Tensor | None = None, out: Tensor | None = None
) -> Any:
    """Return cuBLAS's product of two matrices; `layout` says which are transposed."""
    number = {torch.float32: 4, torch.float16: 5, torch.bfloat16: 6}[dtype if out is None else out.dtype]
    workspace = torch.empty(0, device="cuda")
    transposed = layout[0] == "T", layout[1] == "T"
    settings = (None, number, bias, None, False, None, False, workspace, 0, out is not None, False)
    return generic_gemm(a, transposed[0], b, transposed[1], out, *settings)[0]


def weight_gradient(x: Any, grad: Any, weight: Any, *, accumulates: bool) -> Any:
    if not accumulates:
        return multiply(x, grad, "NT", dtype=weight.dtype)
    multiply(x, grad, "NT", dtype=weight.dtype, out=weight.main_grad)
    weight.grad_added_to_main_grad = True
    return get_dummy_wgrad(list(weight.shape), weight.dtype)


_DUMMIES: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}


def get_dummy_wgrad(shape: Sequence[int], dtype: torch.dtype, zero: bool = False) -> Tensor:
    """Return a gradient that stands for one already added elsewhere; one per shape is enough."""
    key = tuple(shape), dtype
    if key not in _DUMMIES:
        _DUMMIES[key] = torch.empty(key[0], dtype=dtype, device="cuda")
    return _DUMMIES[key].detach()


class TransformerEngineBaseModule(Module):
    """What layers with weights share."""

    def __init__(
        self,
        *,
        tp_group: Any = None,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        parallel_mode: str | None = None,
        fuse_wgrad_accumulation: bool = False,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size = tp_group, tp_size
        self.sequence_parallel = sequence_parallel
        self.parallel_mode = parallel_mode
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.fp8_meta: dict[str, Any] = {}

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        self.tp_group = tp_group

    def get_extra_state(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Keep nothing: there are no scales."""

    @property
    def _parallelism(self) -> Parallelism:
        return Parallelism(
            mode=self.parallel_mode, group=self.tp_group, size=self.tp_size, sequence=self.sequence_parallel
        )

    def new_weight(
        self, shape: Sequence[int], dtype: torch.dtype, device: Any, init_method: Callable[[Tensor], Any] | None
    ) -> Parameter:
        weight = Parameter(torch.empty(tuple(shape), dtype=dtype, device=device))
        (init_method or (lambda tensor: torch.nn.init.normal_(tensor, std=0.023)))(weight)
        return weight


class Linear(TransformerEngineBaseModule):
    """A linear layer; weights are cut along the outputs ("column") or the inputs ("row")."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        super().__init__(
            tp_group=tp_group,
            tp_size=tp_size,
            sequence_parallel=sequence_parallel,
            parallel_mode=parallel_mode,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
        )
        refuse_userbuffers(options)
        dtype = params_dtype or torch.get_default_dtype()
        self.in_features = in_features // tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // tp_size if parallel_mode == "column" else out_features
        self.use_bias, self.return_bias = bias, return_bias
        self.weight = self.new_weight((self.out_features, self.in_features), dtype, device, init_method)
        if bias:
            self.bias = Parameter(torch.zeros(self.out_features, dtype=dtype, device=device))
        else:
            self.bias = torch.empty(0, dtype=dtype, device=device)  # type: ignore[assignment]

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **options: Any) -> Any:
        fused = self.bias if self.use_bias and not self.return_bias else None
        output = _Product.apply(inp, self.weight, fused, self._parallelism, self.fuse_wgrad_accumulation)  # type: ignore[no-untyped-call]
        return (output, self.bias) if self.return_bias else output


def refuse_userbuffers(options: dict[str, Any]) -> None:
    """Raise if communication is to overlap with products, which needs the package's own code."""
    if any(value for name, value in options.items() if name.startswith("ub_overlap") or name.startswith("ub_bulk")):
        raise RuntimeError(
            "userbuffers (tp_comm_overlap) must have Transformer Engine's own Python, but it is not installed; "
            "pip install --no-deps transformer_engine onnxscript, or leave the option out"
        )


class GroupedLinear(TransformerEngineBaseModule):
    """One linear layer per expert, whose rows lie one after the other."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        super().__init__(tp_group=tp_group, tp_size=tp_size, fuse_wgrad_accumulation=fuse_wgrad_accumulation)
        dtype = params_dtype or torch.get_default_dtype()
        inputs = in_features // tp_size if parallel_mode == "row" else in_features
        outputs = out_features // tp_size if parallel_mode == "column" else out_features
        self.num_gemms, self.use_bias, self.return_bias = num_gemms, bias, return_bias
        for expert in range(num_gemms):
            setattr(self, f"weight{expert}", self.new_weight((outputs, inputs), dtype, device, init_method))
            if bias:
                setattr(self, f"bias{expert}", Parameter(torch.zeros(outputs, dtype=dtype, device=device)))

    def forward(self, inp: Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None) -> Any:
        weights = [getattr(self, f"weight{expert}") for expert in range(self.num_gemms)]
        biases = [getattr(self, f"bias{expert}") for expert in range(self.num_gemms)] if self.use_bias else []
        fused = [] if self.return_bias else biases
        output = _GroupedProduct.apply(  # type: ignore[no-untyped-call]
            inp, list(m_splits), self.fuse_wgrad_accumulation, len(weights), *weights, *fused
        )
        return (output, biases) if self.return_bias else output


class _GroupedProduct(torch.autograd.Function):
    """Products of parts of the rows with a weight each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, splits: list[int], accumulates: bool, count: int, *tensors: Tensor) -> Tensor:
        weights, biases = tensors[:count], tensors[count:]
        rows = x.reshape(-1, x.shape[-1])
        output = rows.new_empty((rows.shape[0], weights[0].shape[0]))
        _grouped(weights, "TN", torch.split(rows, splits), [output], bias=biases)
        ctx.save_for_backward(rows, *weights)
        ctx.splits, ctx.accumulates, ctx.has_bias = splits, accumulates, bool(biases)
        return output.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        rows, *weights = ctx.saved_tensors
        grads = torch.split(gradients[0].reshape(rows.shape[0], -1), ctx.splits)
        grad_x = torch.empty_like(rows)
        _grouped(weights, "NN", grads, [grad_x])
        if ctx.accumulates:
            targets = [weight.main_grad for weight in weights]
            _grouped(torch.split(rows, ctx.splits), "NT", grads, targets, accumulates=True)
            for weight in weights:
                weight.grad_added_to_main_grad = True
            targets = [get_dummy_wgrad(list(weight.shape), weight.dtype) for weight in weights]
        else:
            targets = [torch.empty_like(weight) for weight in weights]
            _grouped(torch.split(rows, ctx.splits), "NT", grads, targets)
        biases = [part.sum(0) for part in grads] if ctx.has_bias else []
        return (grad_x.view(gradients[0].shape[:-1] + rows.shape[-1:]), None, None, None, *targets, *biases)


def _grouped(
    a: Sequence[Tensor],
    layout: str,
    b: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    bias: Sequence[Tensor] = (),
    accumulates: bool = False,
) -> None:
    transposed = layout[0] == "T", layout[1] == "T"
    settings: Any = ([], 0, accumulates, False, 0)
    te_general_grouped_gemm(
        a, transposed[0], b, transposed[1], outputs, 6, [], bias, None, len(outputs) == 1, [], False, *settings
    )
