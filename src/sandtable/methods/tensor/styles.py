"""Split styles: the ways in which one module of a model can be split.

Each returns the module that takes the original's place. Four of them make a transformer: "heads" is an attention
module, from its input to its output projection; "column" and "row" are the first and the second linear layer of a pair;
"vocabulary" is the embedding and the head at the two ends. In a convolution net, "column" and "row" are a pair of
convolutions, and "channels" a layer between them with parameters for each channel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.attention import ParallelMultiheadAttention
from sandtable.methods.tensor.channels import of_own_channels
from sandtable.methods.tensor.convolution import ColumnParallelConv, RowParallelConv, is_convolution
from sandtable.methods.tensor.embedding import VocabParallelEmbedding
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.linear import ColumnParallelLinear, RowParallelLinear
from sandtable.methods.tensor.operators import copy
from sandtable.methods.tensor.region import Region

__all__ = [
    "ChannelSplit",
    "ColumnSplit",
    "HeadSplit",
    "RowSplit",
    "SplitStyle",
    "SplitTarget",
    "VocabularySplit",
    "change_first",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTarget:
    """A module to split: its name, the region that it borders, and the gate by which its input enters."""

    name: str
    module: nn.Module
    region: Region
    enter: Callable[[Tensor], Tensor]

    @property
    def group(self) -> TensorGroup:
        return self.region.group


class SplitStyle(ABC):
    """One way to split a module."""

    @abstractmethod
    def split(self, target: SplitTarget) -> nn.Module:
        """Return what takes the module's place: another module, or the same one with hooks."""


@dataclass(frozen=True, slots=True)
class ColumnSplit(SplitStyle):
    """A linear layer or convolution split by outputs; `parts`: how many matrices are fused in it, one by one."""

    parts: int = 1

    def split(self, target: SplitTarget) -> nn.Module:
        if is_convolution(target.module):
            return ColumnParallelConv(target.module, target.group, enter=target.enter, name=target.name)
        return ColumnParallelLinear(target.module, target.group, enter=target.enter, parts=self.parts, name=target.name)


@dataclass(frozen=True, slots=True)
class RowSplit(SplitStyle):
    """A linear layer or convolution split by inputs: the end of a region."""

    def split(self, target: SplitTarget) -> nn.Module:
        kind = RowParallelConv if is_convolution(target.module) else RowParallelLinear
        row = kind(target.module, target.group, leave=target.region.leave, name=target.name)
        row.register_forward_pre_hook(partial(_end, target.region))
        return row


@dataclass(frozen=True, slots=True)
class ChannelSplit(SplitStyle):
    """A layer between two convolutions that treats channels separately; a rank keeps its own."""

    def split(self, target: SplitTarget) -> nn.Module:
        return of_own_channels(target.module, target.group, name=target.name)


@dataclass(frozen=True, slots=True)
class VocabularySplit(SplitStyle):
    """An embedding split by words, or a linear layer that returns this rank's logits; both see all tokens."""

    def split(self, target: SplitTarget) -> nn.Module:
        if isinstance(target.module, nn.Linear):
            return ColumnParallelLinear(
                target.module, target.group, enter=partial(copy, group=target.group), name=target.name
            )
        return VocabParallelEmbedding(target.module, target.group, name=target.name)


@dataclass(frozen=True, slots=True)
class HeadSplit(SplitStyle):
    """An attention module that works with this rank's heads.

    Its first argument enters the region; the plan splits its linear layers by "column" and "row". `counts`: attributes
    of the module or its config that the ranks must divide; `sizes`: attributes that shrink with them. Those of the
    module itself are divided. `of_heads`: arguments that hold something for each head of each sample along dim 0. An
    `nn.MultiheadAttention` is replaced as a whole.
    """

    counts: tuple[str, ...] = ("num_heads", "num_attention_heads", "num_key_value_heads", "n_head", "num_kv_heads")
    sizes: tuple[str, ...] = ("split_size", "all_head_size")
    of_heads: tuple[str, ...] = ()

    def split(self, target: SplitTarget) -> nn.Module:
        module = target.module
        if isinstance(module, nn.MultiheadAttention):
            return ParallelMultiheadAttention(module, target.region, name=target.name)
        counts = self._find_counts(module)
        if not counts:
            raise MethodError(
                f"attention split by heads must have an attribute that counts them, but {target.name} "
                f"({type(module).__name__}) has none of {', '.join(self.counts)}; name it: HeadSplit(counts=(...))"
            )
        for name, count in counts.items():
            target.group.check_divides(count, f"{name} of {target.name}")
        for name in (*self.counts, *self.sizes):
            if isinstance(getattr(module, name, None), int):
                setattr(module, name, getattr(module, name) // target.group.size)
        num_heads = next(iter(counts.values()))
        module.register_forward_pre_hook(partial(self._enter, target, num_heads), with_kwargs=True)
        return module

    def _find_counts(self, module: nn.Module) -> dict[str, int]:
        """Return the counts of the module itself, or else of its config."""
        counts = {}
        for name in self.counts:
            for owner in (module, getattr(module, "config", None)):
                count = getattr(owner, name, None)
                if isinstance(count, int):
                    counts[name] = count
                    break
        return counts

    def _enter(
        self, target: SplitTarget, num_heads: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = change_first(target.region.enter, args, kwargs)
        for name in self.of_heads:
            if isinstance(kwargs.get(name), torch.Tensor):
                of_all = torch.unflatten(kwargs[name], 0, (-1, num_heads))
                kwargs = {**kwargs, name: target.group.share(of_all, dim=1).flatten(0, 1)}
        return args, kwargs


def change_first(
    change: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with the first one changed, positional or named."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    first = next(iter(kwargs))
    return args, {**kwargs, first: change(kwargs[first])}


def _end(region: Region, module: nn.Module, args: tuple[Any, ...]) -> None:
    region.end()
