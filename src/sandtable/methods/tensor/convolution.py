"""Convolutions of which each rank holds some channels: of the outputs (column), or of the inputs (row).

    Y = K * X:    this rank's kernels                        X is replicated, each rank makes its channels of Y
    Z = L * Y:    this rank's input channels of each kernel  each rank has its channels of Y, Z is a sum over ranks

The pair works as that of linear layers, with channels in place of columns. What lies between (ReLU, pooling, a norm of
each channel) needs no other rank; layers that treat channels separately (BatchNorm, depthwise convolutions) are in
`channels.py`. Together with data parallelism over other ranks this is the integrated batch and model parallelism of
Gholami et al. 2018 (arXiv:1712.04432).
"""

from functools import partial
from typing import TypeGuard

from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.layout import ShardLayout
from sandtable.methods.tensor.linear import Gate
from sandtable.methods.tensor.operators import copy, reduce

__all__ = ["ColumnParallelConv", "Convolution", "RowParallelConv", "is_convolution"]

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_FUNCTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
"""Keyed by the dims of the weight."""


class ColumnParallelConv(nn.Module):
    """This rank's output channels of a convolution. The input is replicated; the output is this rank's share.

    A rank has complete groups of a grouped convolution, and uses the input channels that belong to them.
    """

    def __init__(
        self, conv: nn.Module, group: TensorGroup, *, enter: Gate | None = None, name: str = "convolution"
    ) -> None:
        super().__init__()
        conv = _checked(conv, name)
        if conv.groups > 1:
            group.check_divides(conv.groups, f"the groups of {name}")
        self.layouts = {"weight": ShardLayout(dim=0), "bias": ShardLayout(dim=0)}
        self.weight = self.layouts["weight"].parameter(conv.weight, group, f"the output channels of {name}")
        self.bias: nn.Parameter | None = None
        if conv.bias is not None:
            self.bias = self.layouts["bias"].parameter(conv.bias, group, f"the output channels of {name}")
        self.num_groups = conv.groups if conv.groups == 1 else conv.groups // group.size
        self.group = group
        self.enter: Gate = partial(copy, group=group) if enter is None else enter
        self._geometry = _Geometry(conv)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [batch, inputs, ...] on every rank to [batch, outputs / ranks, ...]."""
        entered = self.enter(inputs)
        needed = self.weight.size(1) * self.num_groups
        if needed < entered.size(self._geometry.channel_dim(entered)):
            entered = entered.narrow(self._geometry.channel_dim(entered), self.group.rank * needed, needed)
        return self._geometry.apply(entered, self.weight, self.bias, self.num_groups)

    def extra_repr(self) -> str:
        return _describe(self.weight, self.num_groups, self.bias)


class RowParallelConv(nn.Module):
    """This rank's part of the sum over a convolution's inputs. The input is its share; the output is replicated.

    Every rank holds the bias and adds it after the sum, so that it counts once.
    """

    def __init__(
        self, conv: nn.Module, group: TensorGroup, *, leave: Gate | None = None, name: str = "convolution"
    ) -> None:
        super().__init__()
        conv = _checked(conv, name)
        if conv.groups > 1:
            raise MethodError(
                f"a convolution split by input channels must sum over all of them, but {name} has {conv.groups} groups "
                'that it sums separately; give it the style "channels", or "column"'
            )
        self.layouts = {"weight": ShardLayout(dim=1)}
        self.weight = self.layouts["weight"].parameter(conv.weight, group, f"the input channels of {name}")
        self.bias = conv.bias
        self.leave: Gate = partial(reduce, group=group) if leave is None else leave
        self._geometry = _Geometry(conv)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [batch, inputs / ranks, ...] to [batch, outputs, ...] on every rank."""
        outputs = self.leave(self._geometry.apply(inputs, self.weight, None, 1))
        return outputs if self.bias is None else outputs + self.bias.view(-1, *[1] * (self.weight.dim() - 2))

    def extra_repr(self) -> str:
        return _describe(self.weight, 1, self.bias)


def is_convolution(module: nn.Module) -> TypeGuard[Convolution]:
    """Return whether it is an unsplit, not transposed convolution in one to three dims."""
    return isinstance(module, Convolution)


class _Geometry:
    """Stride, padding and dilation of a convolution: what does not depend on the number of channels."""

    def __init__(self, conv: Convolution) -> None:
        self._function = _FUNCTIONS[conv.weight.dim()]
        self._num_dims = conv.weight.dim()
        self._stride, self._dilation = conv.stride, conv.dilation
        self._padding: str | tuple[int, ...] = conv.padding
        self._mode = conv.padding_mode
        self._around: list[int] = []
        if self._mode != "zeros":
            self._around, self._padding = list(conv._reversed_padding_repeated_twice), (0,) * len(conv.stride)

    def channel_dim(self, inputs: Tensor) -> int:
        """Return 1, or 0 if there is no batch dim."""
        return inputs.dim() - self._num_dims + 1

    def apply(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, num_groups: int) -> Tensor:
        if self._around:
            inputs = F.pad(inputs, self._around, mode=self._mode)
        outputs: Tensor = self._function(inputs, weight, bias, self._stride, self._padding, self._dilation, num_groups)
        return outputs


def _checked(conv: nn.Module, name: str) -> Convolution:
    if not is_convolution(conv):
        raise MethodError(
            f"a convolution split by channels must be an nn.Conv1d, Conv2d or Conv3d, but {name} is a "
            f"{type(conv).__name__}; leave it out of the plan"
        )
    return conv


def _describe(weight: Tensor, num_groups: int, bias: Tensor | None) -> str:
    outputs, inputs, *size = weight.shape
    return f"{inputs * num_groups}, {outputs}, kernel_size={tuple(size)}, groups={num_groups}, bias={bias is not None}"
