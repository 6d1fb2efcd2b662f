"""Styles: the ways in which one module of a model can be split.

Each says what takes the module's place. Four of them make a transformer layer: "heads" is an attention module, from
its input to its output projection; "column" and "row" are the first and the second linear of a pair; "vocabulary" is
the embedding and the head at the two ends. Of a convolution net "column" and "row" are a pair of convolutions, and
"channels" what lies between them and has something for each channel.
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

__all__ = ["Channels", "Column", "Heads", "Row", "Site", "Style", "Vocabulary", "change_first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A module in its place: its name, the region it is at the border of, and its way in."""

    name: str
    module: nn.Module
    region: Region
    enter: Callable[[Tensor], Tensor]

    @property
    def group(self) -> TensorGroup:
        return self.region.group


class Style(ABC):
    """One way to split a module."""

    @abstractmethod
    def split(self, site: Site) -> nn.Module:
        """What takes the module's place: another module, or the same one with hooks."""


@dataclass(frozen=True, slots=True)
class Column(Style):
    """A layer split by outputs, linear or a convolution; `parts`: how many matrices are fused in it, one by one."""

    parts: int = 1

    def split(self, site: Site) -> nn.Module:
        if is_convolution(site.module):
            return ColumnParallelConv(site.module, site.group, enter=site.enter, name=site.name)
        return ColumnParallelLinear(site.module, site.group, enter=site.enter, parts=self.parts, name=site.name)


@dataclass(frozen=True, slots=True)
class Row(Style):
    """A layer split by inputs, linear or a convolution: the end of a region."""

    def split(self, site: Site) -> nn.Module:
        kind = RowParallelConv if is_convolution(site.module) else RowParallelLinear
        row = kind(site.module, site.group, leave=site.region.leave, name=site.name)
        row.register_forward_pre_hook(partial(_end, site.region))
        return row


@dataclass(frozen=True, slots=True)
class Channels(Style):
    """A layer between two convolutions whose channels work apart from each other: this rank's."""

    def split(self, site: Site) -> nn.Module:
        return of_own_channels(site.module, site.group, name=site.name)


@dataclass(frozen=True, slots=True)
class Vocabulary(Style):
    """An embedding split by words, or a linear layer that gives this rank's logits; both see all tokens."""

    def split(self, site: Site) -> nn.Module:
        if isinstance(site.module, nn.Linear):
            return ColumnParallelLinear(site.module, site.group, enter=partial(copy, group=site.group), name=site.name)
        return VocabParallelEmbedding(site.module, site.group, name=site.name)


@dataclass(frozen=True, slots=True)
class Heads(Style):
    """An attention module that works with as many heads as there are on this rank.

    Its first argument enters the region; its linear layers are split by "column" and "row" as the plan says. `counts`:
    attributes, of the module or of its config, that must be dealt to the ranks; `sizes`: attributes that shrink with
    them. Those of the module are divided. `of_heads`: arguments that hold something for each head of each sample along
    dim 0. An `nn.MultiheadAttention` is replaced as a whole.
    """

    counts: tuple[str, ...] = ("num_heads", "num_attention_heads", "num_key_value_heads", "n_head", "num_kv_heads")
    sizes: tuple[str, ...] = ("split_size", "all_head_size")
    of_heads: tuple[str, ...] = ()

    def split(self, site: Site) -> nn.Module:
        module = site.module
        if isinstance(module, nn.MultiheadAttention):
            return ParallelMultiheadAttention(module, site.region, name=site.name)
        counts = self._find_counts(module)
        if not counts:
            raise MethodError(
                f"attention split by heads must say how many it has, but {site.name} ({type(module).__name__}) has "
                f"none of {', '.join(self.counts)}; name its attribute: Heads(counts=(...))"
            )
        for name, count in counts.items():
            site.group.check_divides(count, f"{name} of {site.name}")
        for name in (*self.counts, *self.sizes):
            if isinstance(getattr(module, name, None), int):
                setattr(module, name, getattr(module, name) // site.group.size)
        num_heads = next(iter(counts.values()))
        module.register_forward_pre_hook(partial(self._enter, site, num_heads), with_kwargs=True)
        return module

    def _find_counts(self, module: nn.Module) -> dict[str, int]:
        """Of the module itself, or else of its config."""
        found = {}
        for name in self.counts:
            for owner in (module, getattr(module, "config", None)):
                count = getattr(owner, name, None)
                if isinstance(count, int):
                    found[name] = count
                    break
        return found

    def _enter(
        self, site: Site, num_heads: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = change_first(site.region.enter, args, kwargs)
        for name in self.of_heads:
            if isinstance(kwargs.get(name), torch.Tensor):
                of_all = torch.unflatten(kwargs[name], 0, (-1, num_heads))
                kwargs = {**kwargs, name: site.group.share(of_all, dim=1).flatten(0, 1)}
        return args, kwargs


def change_first(
    change: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call with its first argument changed, whether it has a name or not."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    first = next(iter(kwargs))
    return args, {**kwargs, first: change(kwargs[first])}


def _end(region: Region, module: nn.Module, args: tuple[Any, ...]) -> None:
    region.end()
