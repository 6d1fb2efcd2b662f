"""The named vectors of one shard: its part of the weights, of gradients, and of the history."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sandtable.methods.server.distbelief.operations import Operation, Verb
from sandtable.methods.server.message import MalformedError

__all__ = ["NamedVectors"]


class NamedVectors:
    """Vectors by name, all of one form: a tensor per dtype of the model. `copy` and `zero` create names."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._named = {"weights": list(weights)}
        self._changes: dict[Verb, Callable[[Operation], None]] = {
            Verb.ADD: self._add,
            Verb.SCALE: self._scale,
            Verb.MULTIPLY: self._multiply,
            Verb.COPY: self._copy,
            Verb.ZERO: self._zero,
        }

    def __getitem__(self, name: str) -> list[Tensor]:
        try:
            return self._named[name]
        except KeyError:
            raise MalformedError(f"a vector must be one of {sorted(self._named)}, but got {name!r}") from None

    @torch.no_grad()
    def apply(self, operation: Operation) -> float | None:
        """Carry out an operation. For a dot product return this shard's part of it, summed in float64."""
        if operation.verb is Verb.DOT:
            pairs = zip(self[operation.target], self[operation.source], strict=True)
            return sum(torch.dot(left.double(), right.double()).item() for left, right in pairs)
        self._changes[operation.verb](operation)
        return None

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {name: list(tensors) for name, tensors in self._named.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Replace all vectors with those of `state`."""
        self._named = {name: [tensor.clone() for tensor in tensors] for name, tensors in state.items()}

    def _add(self, operation: Operation) -> None:
        for target, source in zip(self[operation.target], self[operation.source], strict=True):
            target.add_(source, alpha=operation.factor)

    def _scale(self, operation: Operation) -> None:
        for target in self[operation.target]:
            target.mul_(operation.factor)

    def _multiply(self, operation: Operation) -> None:
        for target, source in zip(self[operation.target], self[operation.source], strict=True):
            target.mul_(source)

    def _copy(self, operation: Operation) -> None:
        sources = self[operation.source]
        for target, source in zip(self._made(operation.target), sources, strict=True):
            target.copy_(source)

    def _zero(self, operation: Operation) -> None:
        for target in self._made(operation.target):
            target.zero_()

    def _made(self, name: str) -> list[Tensor]:
        if name not in self._named:
            self._named[name] = [torch.empty_like(tensor) for tensor in self._named["weights"]]
        return self._named[name]
