"""Descriptions: functions that the user describes with `sandtable.cost`, called in place of the compiled ones.

Modules are changed when they are imported, or at once if they have been; names that other modules have imported from
them are changed, too. A module that is missing, or that cannot be loaded without CUDA's libraries, consists of its
described functions; another function of it is an error when it is called, which says how to describe it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sandtable.kernel_cost import COST_EVENT, Kernel
from sandtable.trace.work import Work
from sandtable.vgpu.packages.described_operators import DescribedOperators
from sandtable.vgpu.packages.importing import PackageFinder
from sandtable.vgpu.packages.kernels import describe_kernel, record_kernel
from sandtable.vgpu.undescribed import undescribed_module

__all__ = ["follow_descriptions", "needs_card"]

_CUDA_LIBRARY = re.compile(
    r"lib(cud|cublas|cufft|cusparse|cusolver|curand|nv|nccl|c10_cuda|torch_cuda)|undefined symbol"
)


def follow_descriptions(core: ModuleType, finder: PackageFinder, operators: DescribedOperators) -> None:
    """Use every description that this process makes from now on."""

    def describe(event: str, arguments: tuple[str, Callable[..., Any], Any]) -> None:
        name, function, backward = arguments
        module_name, _, attribute = name.rpartition(".")
        replacement = _described(name, function, backward)

        describe_kernel(name, lambda **arguments: _work(_require_kernel(name, function(**arguments))))

        def fill(module: ModuleType) -> None:
            original = module.__dict__.get(attribute)
            if hasattr(original, "fn") and hasattr(original, "run"):
                return  # a kernel of Triton, whose launches ask for the description
            setattr(module, attribute, replacement)
            if original is not None:
                _replace_imported(attribute, original, replacement)

        finder.describe(module_name, fill, undescribed_module)
        operators.describe(name, replacement, has_backward=backward is not None)

    core.watch_audit_events([COST_EVENT], describe)


def needs_card(error: ImportError | OSError) -> bool:
    """Return whether a library cannot be loaded because CUDA's are not there."""
    return _CUDA_LIBRARY.search(str(error)) is not None


def _replace_imported(attribute: str, original: object, replacement: object) -> None:
    """Change the name also where `from module import name` has bound it."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(attribute) is original:
            setattr(module, attribute, replacement)


def _described(name: str, function: Callable[..., Any], backward: Any) -> Callable[..., Any]:
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    place = "::".join(name.rsplit(".", 1))

    class Described(torch.autograd.Function):
        """The call as autograd sees it; tensors among the arguments come last."""

        @staticmethod
        def forward(ctx: Any, spec: Any, values: list[Any], *tensors: Any) -> Any:
            args, options = tree_unflatten(_filled(values, tensors), spec)
            kernel = _require_kernel(name, function(*args, **options))
            _record(place, list(tensors), kernel, kernel)
            ctx.save_for_backward(*tensors)
            ctx.spec, ctx.values, ctx.kernel = spec, values, kernel
            outputs = kernel.outputs
            return tuple(outputs) if isinstance(outputs, list) else outputs

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            tensors = ctx.saved_tensors
            given = [grad for grad in grads if isinstance(grad, torch.Tensor)]
            if callable(backward):
                args, options = tree_unflatten(_filled(ctx.values, tensors), ctx.spec)
                kernel = _require_kernel(f"the backward pass of {name}", backward(*grads, *args, **options))
                outputs = kernel.outputs if isinstance(kernel.outputs, (list, tuple)) else (kernel.outputs,)
            else:
                needs = ctx.needs_input_grad[2:]
                outputs = [torch.empty_like(x) if need else None for x, need in zip(tensors, needs, strict=True)]
                kernel = _times(ctx.kernel, backward, outputs)
            _record(f"{place}_backward", [*given, *tensors], kernel, ctx.kernel)
            return None, None, *outputs

    def call(*args: Any, **options: Any) -> Any:
        leaves, spec = tree_flatten((args, options))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        values = [_PLACE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        if backward is not None:
            return Described.apply(spec, values, *tensors)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            kernel = _require_kernel(name, function(*args, **options))
            _record(place, tensors, kernel, kernel)
        return kernel.outputs

    call.__name__ = name.rpartition(".")[2]
    return call


_PLACE = object()
"""Stands for a tensor among the arguments of a call."""


def _filled(values: list[Any], tensors: Any) -> list[Any]:
    rest = iter(tensors)
    return [next(rest) if value is _PLACE else value for value in values]


def _require_kernel(name: str, kernel: Any) -> Kernel:
    if not isinstance(kernel, Kernel):
        raise TypeError(f"the description of {name} must return a sandtable.Kernel, but got {kernel!r}")
    return kernel


def _times(kernel: Kernel, factor: float, outputs: list[Any]) -> Kernel:
    num_bytes = None if kernel.bytes is None else round(kernel.bytes * factor)
    return Kernel(
        outputs=outputs,
        flops=round(kernel.flops * factor),
        bytes=num_bytes,
        dtype=kernel.dtype,
        family=kernel.family,
        num_kernels=max(1, round(kernel.num_kernels * factor)),
    )


def _record(place: str, inputs: list[Any], kernel: Kernel, defaults: Kernel) -> None:
    import torch
    from torch.utils._pytree import tree_leaves

    outputs = [leaf for leaf in tree_leaves([kernel.outputs, kernel.writes]) if isinstance(leaf, torch.Tensor)]
    work = _work(kernel, dtype=defaults.dtype)
    record_kernel(place, inputs=inputs, outputs=outputs, work=work)


def _work(kernel: Kernel, *, dtype: Any = "") -> Work:
    return Work(
        family=kernel.family,  # type: ignore[arg-type]
        flops=kernel.flops,
        dtype=str(kernel.dtype or dtype).removeprefix("torch."),
        bytes_read=kernel.bytes,
        bytes_written=None if kernel.bytes is None else 0,
        num_kernels=kernel.num_kernels,
    )
