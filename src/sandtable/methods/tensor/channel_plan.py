"""A plan for convolution nets: pair up the layers of an `nn.Sequential`, the first by outputs, the second by inputs.

    conv  norm  relu  pool  conv  relu  conv  relu  flatten  linear  relu  linear
    column channels          row         column                row       (replicated)

Only layers that work on each channel separately may come between: activations, pooling, dropout, norms of channels,
flatten. Anything else ends the search for a partner, and a layer without one stays replicated.
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules import activation, dropout, pooling
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sandtable.methods.tensor.convolution import is_convolution
from sandtable.methods.tensor.plan import TensorPlan

__all__ = ["pair_up"]

_EACH_ELEMENT = (
    *(
        getattr(activation, name)
        for name in ("ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish")
    ),
    *(getattr(activation, name) for name in ("Sigmoid", "Tanh", "Hardtanh", "Hardswish", "Hardsigmoid", "LogSigmoid")),
    nn.Softplus,
    nn.Identity,
    dropout._DropoutNd,
)
_EACH_CHANNEL = (
    pooling._MaxPoolNd,
    pooling._AvgPoolNd,
    pooling._AdaptiveAvgPoolNd,
    pooling._AdaptiveMaxPoolNd,
    nn.Upsample,
)
_PER_CHANNEL = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.PReLU)


def pair_up(model: nn.Module) -> TensorPlan | None:
    """Return the plan, or None if no two layers make a pair."""
    styles: dict[str, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Sequential):
            inside = f".{name}." if name else "."
            styles |= {f"{inside}{child}": style for child, style in _pairs(module)}
    return TensorPlan(styles) if "column" in styles.values() else None


def _pairs(row: nn.Sequential) -> Iterator[tuple[str, str]]:
    first: str | None = None
    is_linear = False
    between: list[str] = []
    for name, module in row.named_children():
        if _is_layer(module):
            if first is None or (is_linear and is_convolution(module)):
                first, is_linear, between = name, isinstance(module, nn.Linear), []
                continue
            yield from ((first, "column"), *((inner, "channels") for inner in between), (name, "row"))
            first = None
        elif first is not None and _is_per_channel(module) and not is_linear:
            between.append(name)
        elif first is not None and not _passes(module, is_linear=is_linear):
            first = None


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (is_convolution(module) and module.groups == 1)


def _is_per_channel(module: nn.Module) -> bool:
    """Return whether the layer has parameters for each channel, of which a rank needs those of its own channels."""
    return isinstance(module, _PER_CHANNEL) or is_convolution(module)


def _passes(module: nn.Module, *, is_linear: bool) -> bool:
    """Return whether a rank can run the layer on its share. A linear layer's share is of the last dim, not channels."""
    if isinstance(module, nn.Flatten):
        return not is_linear and module.start_dim == 1
    return isinstance(module, _EACH_ELEMENT) or (not is_linear and isinstance(module, _EACH_CHANNEL))
