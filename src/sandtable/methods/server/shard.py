"""A shard: the weights one server holds, and the optimizer that updates them.

Weights of one dtype are one vector; the optimizer's parameters are views of its slices. So what a worker pulls is the
memory of the vectors, and what it pushes becomes the slices' gradients without a copy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sandtable.methods.server.message import MalformedError
from sandtable.methods.server.shard_plan import ShardPart, trainable

__all__ = ["Gradient", "OptimizerFactory", "Shard", "initial_weights", "raw_bytes"]

OptimizerFactory = Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
"""Makes the server's optimizer from its named parameters, as `lambda named: torch.optim.SGD(named, lr=0.1)`."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The content of a push: a vector per dtype, and the numbers of the slices that had no gradient."""

    vectors: list[Tensor]
    absent: frozenset[int]


class Shard:
    """One server's weights. `version` counts their updates."""

    def __init__(self, model: nn.Module, parts: Sequence[ShardPart], factory: OptimizerFactory) -> None:
        self.parts = parts
        self.vectors = initial_weights(model, parts)
        self._parameters: list[nn.Parameter] = []
        named = []
        for part, vector in zip(parts, self.vectors, strict=True):
            for parameter_slice, view in zip(part.slices, _views(part, vector), strict=True):
                parameter = nn.Parameter(view)
                self._parameters.append(parameter)
                named.append((parameter_slice.label, parameter))
        self.optimizer = factory(named)
        self.version = 0

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def apply(self, gradients: Sequence[Gradient]) -> None:
        """Step the optimizer on the mean of `gradients`, summed in their order."""
        absent = frozenset.intersection(*(gradient.absent for gradient in gradients))
        vectors = [_mean([gradient.vectors[index] for gradient in gradients]) for index in range(len(self.parts))]
        views = [view for part, vector in zip(self.parts, vectors, strict=True) for view in _views(part, vector)]
        for number, (parameter, view) in enumerate(zip(self._parameters, views, strict=True)):
            parameter.grad = None if number in absent else view
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.version += 1

    def set_options(self, options: Any) -> None:
        """Adopt options such as the learning rate: a mapping for all parameter groups, or one for each."""
        groups = self.optimizer.param_groups
        per_group = options if isinstance(options, list) else [options] * len(groups)
        if len(per_group) != len(groups) or not all(isinstance(entry, dict) for entry in per_group):
            raise MalformedError(f"options must be a mapping, or {len(groups)} of them, one per group; got {options!r}")
        for group, entry in zip(groups, per_group, strict=True):
            for name, value in entry.items():
                if name not in group or type(value) not in (int, float) or type(group[name]) not in (int, float):
                    known = sorted(key for key, now in group.items() if type(now) in (int, float))
                    raise MalformedError(f"an option must be a number and one of {known}, but got {name}={value!r}")
                group[name] = value

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version, "weights": self.vectors, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for vector, saved in zip(self.vectors, state["weights"], strict=True):
            vector.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]


def raw_bytes(vector: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU vector, writable, without a copy."""
    return vector.view(torch.uint8).numpy().data


def initial_weights(model: nn.Module, parts: Sequence[ShardPart]) -> list[Tensor]:
    """Return a copy of the model's weights that belong to `parts`, one vector per part."""
    tables = trainable(model)
    vectors = []
    for part in parts:
        table = torch.cat([parameter.detach().reshape(-1).cpu() for _, parameter in tables[part.dtype]])
        vectors.append(table[part.start : part.stop].clone())
    return vectors


def _views(part: ShardPart, vector: Tensor) -> list[Tensor]:
    views, offset = [], 0
    for parameter_slice in part.slices:
        size = parameter_slice.num_elements
        views.append(vector[offset : offset + size].view(parameter_slice.shape))
        offset += size
    return views


def _mean(vectors: Sequence[Tensor]) -> Tensor:
    if len(vectors) == 1:
        return vectors[0]
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total += vector
    return total.div_(len(vectors))
