"""Sequence parallelism: between two modules of a model each rank keeps its share of the tokens.

Besides the split layers, what lies there (norms, residuals, dropout, biases added once) treats every token separately.
So a rank does it only for its own tokens, which saves memory and repeated work. Parameters there are replicated but see
only some of the tokens, so their gradients are partial sums, which `sum_gradients` adds up.

Korthikanti et al. 2022 (arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from sandtable.errors import MethodError
from sandtable.methods.tensor import operators
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.region import Region
from sandtable.methods.tensor.styles import change_first

__all__ = ["share_tokens", "sum_gradients"]


def share_tokens(modules: list[nn.Module], region: Region) -> None:
    """Split the tokens of the first module's first argument, and gather those of the last one's output."""
    first, last = modules[0], modules[-1]
    if first in modules[1:] or last in modules[:-1]:
        raise MethodError(
            "the first and the last module of a sequence must occur in the model once, but one of them "
            f"({type(last).__name__}) has several names; copy it, or use sequence_parallel=False"
        )
    first.register_forward_pre_hook(partial(_split, region), with_kwargs=True, prepend=True)
    last.register_forward_hook(partial(_join, region))


def sum_gradients(places: Iterable[tuple[nn.Module, str]], group: TensorGroup) -> None:
    """Sum the gradients of parameters, given by module and name, over the ranks before they reach `grad`.

    Others replace a parameter for one pass (FSDP2 by the gathered one, PipeDream by an old version, a copy of the model
    by its own), so whatever tensor a module is about to compute with gets the hook, once.
    """
    hooked = WeakTensorKeyDictionary()

    def hook(key: str, module: nn.Module, *_: Any) -> None:
        tensor = module._parameters[key]
        if tensor is not None and tensor.requires_grad and tensor not in hooked:
            hooked[tensor] = True
            tensor.register_hook(group.all_reduce)  # type: ignore[no-untyped-call]

    for module, key in places:
        hook(key, module)
        module.register_forward_pre_hook(partial(hook, key))


def _split(
    region: Region, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    group, dim = region.group, region.sequence_dim
    assert dim is not None

    def split(tensor: Tensor) -> Tensor:
        length = tensor.size(dim)
        if length % group.size:
            raise MethodError(
                f"the number of ranks ({group.size}) must divide the number of tokens of a sequence, but got {length} "
                f"in dim {dim}; pad them to {-(-length // group.size) * group.size}, give sequence_dim if it is "
                "another dim, or use sequence_parallel=False"
            )
        region.randomness.enter(tensor.device)
        return operators.split(tensor, group, dim)

    return change_first(split, args, kwargs)


def _join(region: Region, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    assert region.sequence_dim is not None
    region.randomness.leave()
    tokens, *others = output if isinstance(output, tuple) else (output,)
    joined = operators.join(tokens, region.group, region.sequence_dim)
    return (joined, *others) if isinstance(output, tuple) else joined
