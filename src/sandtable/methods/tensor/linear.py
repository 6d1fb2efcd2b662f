"""Linear layers of which each rank holds a slice: by columns (outputs) or by rows (inputs).

    Y = X A:      A = [A_1 A_2]           X is replicated, each rank makes its columns of Y
    Z = Y B:      B = [B_1; B_2]          each rank has its columns of Y, Z = Y_1 B_1 + Y_2 B_2 is a sum over ranks

What lies between the two (GeLU, the attention of one head) needs no other rank. Both are made from an unsplit
`nn.Linear`, or from GPT-2's `Conv1D`, whose weight is transposed; the slice keeps form and names. The layer does not
choose its communication: `enter` and `leave` are gates it is given.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.layout import ShardLayout
from sandtable.methods.tensor.operators import copy, reduce

__all__ = ["ColumnParallelLinear", "Gate", "RowParallelLinear", "is_linear_layer"]

Gate = Callable[[Tensor], Tensor]


class ColumnParallelLinear(nn.Module):
    """This rank's outputs of a linear layer. The input is replicated; the output is this rank's share.

    `parts`: how many matrices are fused in the layer, one after the other (3 for [q k v]); each is split.
    """

    def __init__(
        self, linear: nn.Module, group: TensorGroup, *, enter: Gate | None = None, parts: int = 1, name: str = "linear"
    ) -> None:
        super().__init__()
        weight, bias = _parameters(linear, name)
        self.is_transposed = _is_transposed(linear)
        self.layouts = {"weight": ShardLayout(dim=1 if self.is_transposed else 0, parts=parts)}
        self.weight = self.layouts["weight"].parameter(weight, group, f"the outputs of {name}")
        self.bias: nn.Parameter | None = None
        if bias is not None:
            self.layouts["bias"] = ShardLayout(dim=0, parts=parts)
            self.bias = self.layouts["bias"].parameter(bias, group, f"the outputs of {name}")
        self.enter: Gate = partial(copy, group=group) if enter is None else enter

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., inputs] on every rank to [..., outputs / ranks]."""
        return F.linear(self.enter(inputs), self.weight.t() if self.is_transposed else self.weight, self.bias)

    def extra_repr(self) -> str:
        return _describe(self.weight, self.is_transposed, self.bias)


class RowParallelLinear(nn.Module):
    """This rank's part of the sum over a linear layer's inputs. The input is its share; the output is replicated.

    Every rank holds the bias and adds it after the sum, so that it counts once.
    """

    def __init__(
        self, linear: nn.Module, group: TensorGroup, *, leave: Gate | None = None, name: str = "linear"
    ) -> None:
        super().__init__()
        weight, bias = _parameters(linear, name)
        self.is_transposed = _is_transposed(linear)
        self.layouts = {"weight": ShardLayout(dim=0 if self.is_transposed else 1)}
        self.weight = self.layouts["weight"].parameter(weight, group, f"the inputs of {name}")
        self.bias = bias
        self.leave: Gate = partial(reduce, group=group) if leave is None else leave

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., inputs / ranks] to [..., outputs] on every rank."""
        outputs = self.leave(F.linear(inputs, self.weight.t() if self.is_transposed else self.weight))
        return outputs if self.bias is None else outputs + self.bias

    def extra_repr(self) -> str:
        return _describe(self.weight, self.is_transposed, self.bias)


def is_linear_layer(module: nn.Module) -> bool:
    """Return whether it is an unsplit linear layer."""
    return isinstance(module, nn.Linear) or _is_transposed(module)


def _parameters(linear: nn.Module, name: str) -> tuple[nn.Parameter, nn.Parameter | None]:
    if not is_linear_layer(linear):
        raise MethodError(
            f"a layer split by columns or rows must be an nn.Linear or a Conv1D, but {name} is a "
            f"{type(linear).__name__}; leave it out of the plan, or split the linear layers inside it"
        )
    return linear.weight, linear.bias  # type: ignore[return-value]


def _is_transposed(linear: nn.Module) -> bool:
    """Return whether it is transformers' Conv1D, with weight [inputs, outputs]; known by name, to need no import."""
    return type(linear).__name__ == "Conv1D"


def _describe(weight: Tensor, is_transposed: bool, bias: Tensor | None) -> str:
    outputs, inputs = weight.shape[::-1] if is_transposed else weight.shape
    return f"in_features={inputs}, out_features={outputs}, bias={bias is not None}"
