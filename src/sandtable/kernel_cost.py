"""Kernel costs: how a user describes a compiled function that a rehearsal cannot call.

@sandtable.cost("my_extension.fused_bias_gelu", backward=2)
def fused_bias_gelu(x, bias):
    return sandtable.Kernel(outputs=torch.empty_like(x), bytes=2 * x.nbytes)
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["COST_EVENT", "Kernel", "cost"]

COST_EVENT = "sandtable.cost"
"""The audit event that describes a function: its name, the description, and that of its backward pass."""

_Description = TypeVar("_Description", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a call returns, and the work that it takes.

    `outputs` is what the function returns: a tensor, several, or None. `writes` are tensors that it changes. `flops`
    are operations of matrix products in `dtype`, by default that of the first tensor; `bytes` are those moved to and
    from memory, by default every tensor once. `family` is whose share of the peak it reaches: gemm, attention,
    elementwise, normalisation, reduction, copy or indexing.
    """

    outputs: Any = None
    writes: tuple[Any, ...] = ()
    flops: int = 0
    bytes: int | None = None
    dtype: Any = ""
    family: str = "elementwise"
    num_kernels: int = 1


def cost(name: str, *, backward: float | Callable[..., Kernel] | None = None) -> Callable[[_Description], _Description]:
    """Describe the function `name`, such as "package.module.function", by one that takes its arguments.

    In a rehearsal it is called instead, and returns a `Kernel`. With `backward`, gradients flow through the call: the
    backward pass takes so many times the work, or what a second description says, which takes the gradients of the
    outputs and then the arguments, and whose outputs are the gradients of the tensors among them. Outside a rehearsal
    this does nothing.
    """
    if "." not in name:
        raise ValueError(f"a function must be named with its module, but got {name!r}; try package.{name}")

    def describe(function: _Description) -> _Description:
        sys.audit(COST_EVENT, name, function, backward)
        return function

    return describe
