"""Layers that treat each channel, or group of channels, separately: between split layers a rank has its own channels.

BatchNorm and InstanceNorm have a scale and statistics per channel, GroupNorm per group, PReLU a slope per channel; a
depthwise convolution has a kernel per channel, a grouped one several per group. Ranks get these channels in order, as
they got those of the convolution before. The result is the same layer with fewer channels; nothing is sent.
"""

import copy
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sandtable.errors import MethodError
from sandtable.methods.tensor.convolution import is_convolution
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.layout import ShardLayout

__all__ = ["of_own_channels", "sees_a_share"]

_OF_CHANNELS = ShardLayout(dim=0)
_SEES_A_SHARE = "sees_a_share_of_channels"


def of_own_channels(module: nn.Module, group: TensorGroup, *, name: str) -> nn.Module:
    """Return the same layer for this rank's channels."""
    counts = _counts(module, name)
    for attribute, what in counts.items():
        group.check_divides(getattr(module, attribute), f"{what} of {name}")
    own = _shallow_copy(module)
    slices: dict[str, ShardLayout] = {}
    for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if tensor.dim() == 0 or not counts:
            continue
        slices[key] = _OF_CHANNELS
        _put(own, key, tensor, group, f"the channels of {name}")
    for attribute in counts:
        setattr(own, attribute, getattr(module, attribute) // group.size)
    own.layouts = slices  # type: ignore[assignment]
    setattr(own, _SEES_A_SHARE, True)
    return own


def sees_a_share(module: nn.Module) -> bool:
    """Return whether its replicated parameters, such as the one slope of a PReLU, see only some of the channels."""
    return getattr(module, _SEES_A_SHARE, False)


def _counts(module: nn.Module, name: str) -> Mapping[str, str]:
    """Return the attributes that count channels or groups, with what they count; none if all channels share."""
    if isinstance(module, nn.SyncBatchNorm) and module.process_group is None:
        raise MethodError(
            f"{name} must use the group of ranks with the same channels, but its group is all ranks; give "
            "SyncBatchNorm(process_group=...) the data-parallel group"
        )
    if isinstance(module, _BatchNorm | _InstanceNorm):
        return {"num_features": "the channels"}
    if isinstance(module, nn.GroupNorm):
        return {"num_groups": "the groups", "num_channels": "the channels"}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": "the slopes"} if module.num_parameters > 1 else {}
    if is_convolution(module) and module.groups > 1:
        return {"groups": "the groups", "in_channels": "the input channels", "out_channels": "the output channels"}
    raise MethodError(
        'a layer of the style "channels" must treat channels separately (BatchNorm, InstanceNorm, GroupNorm, PReLU '
        f"or a grouped convolution), but {name} is a {type(module).__name__}; leave it out of the plan"
    )


def _shallow_copy(module: nn.Module) -> nn.Module:
    """Return a copy of the module with its own dictionaries of parameters and buffers."""
    copied = copy.copy(module)
    copied._parameters, copied._buffers = dict(module._parameters), dict(module._buffers)
    return copied


def _put(module: nn.Module, key: str, tensor: Tensor, group: TensorGroup, what: str) -> None:
    if isinstance(tensor, nn.Parameter):
        module._parameters[key] = _OF_CHANNELS.parameter(tensor, group, what)
    else:
        module._buffers[key] = _OF_CHANNELS.take(tensor, group, what)
