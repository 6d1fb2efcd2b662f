"""Weight versions: the weights of a stage as they were, for minibatches that are still in flight.

Picture a library that lends its current edition: a reader keeps that copy until the loan ends, whatever is printed
meanwhile. The parameters of the stage are always the latest version, and any optimizer updates them in place. A
minibatch computes with leaves that share memory with the parameters while their version is the latest. When an update
would overwrite a version that is still needed, the parameters it changes first move to new memory, and the leaves keep
the old. So

- a version costs memory only if a minibatch in flight needs it, and only for parameters that have changed since,
- a stage with one minibatch in flight (the last stage) never copies anything,
- autograd sees different tensors for different versions, and still checks that none is overwritten.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["Version", "Versions"]


@dataclass(slots=True, eq=False)
class Version:
    """Leaves by name, for `torch.func.functional_call`; `users` minibatches in flight use them."""

    number: int
    weights: dict[str, Tensor]
    users: int = 0


class Versions:
    """All versions of one stage that are still needed. `most_held` is the largest number held at once.

    Gradients of all versions accumulate in the parameters themselves; `on_gradient(index)` is called in the backward
    pass when the gradient of that parameter is in place.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer | None, *, on_gradient: Callable[[int], None]) -> None:
        self.parameters = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.most_held = 1
        self._optimizer = optimizer
        self._on_gradient = on_gradient
        self._held = {0: Version(0, self._leaves())}

    @property
    def latest(self) -> int:
        return max(self._held)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def take(self, number: int) -> Version:
        """Return the version, for a minibatch that begins its forward pass."""
        version = self._held[number]
        version.users += 1
        return version

    def release(self, version: Version) -> None:
        """Give the version back after the minibatch's backward pass."""
        version.users -= 1

    def update(self, *, keep_from: int) -> None:
        """Make the next version by the optimizer's step, and keep those from `keep_from` on, which will be needed."""
        latest = self._held[self.latest]
        self._drop(keep_from)
        weights = self._move_on(latest.weights)
        if self._optimizer is not None:
            self._optimizer.step()
        self._held[latest.number + 1] = Version(latest.number + 1, weights)
        self.most_held = max(self.most_held, len(self._held))

    def restart(self) -> None:
        """Make the latest version number 0 again; nothing may be in flight."""
        latest = self._held[self.latest]
        assert all(version.users == 0 for version in self._held.values()), "a minibatch is still in flight"
        self._held = {0: Version(0, latest.weights)}

    def _drop(self, keep_from: int) -> None:
        for number in [number for number, version in self._held.items() if number < keep_from and not version.users]:
            del self._held[number]

    def _move_on(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Move parameters that are about to change to new memory where a held version uses the old."""
        moving = {
            name
            for name, parameter in self.parameters.items()
            if parameter.grad is not None and any(held.weights[name] is weights[name] for held in self._held.values())
        }
        for name in moving:
            self.parameters[name].data = self.parameters[name].data.clone()
        return {**weights, **self._leaves(moving)} if moving else weights

    def _leaves(self, names: set[str] | None = None) -> dict[str, Tensor]:
        leaves: dict[str, Tensor] = {}
        for index, (name, parameter) in enumerate(self.parameters.items()):
            if names is None or name in names:
                # `.data` shares memory but not the version counter, so that autograd does not reject an update.
                leaf = parameter.data.requires_grad_()
                register: Any = leaf.register_post_accumulate_grad_hook
                register(self._collector(index, parameter))
                leaves[name] = leaf
        return leaves

    def _collector(self, index: int, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        def collect(leaf: Tensor) -> None:
            gradient, leaf.grad = leaf.grad, None
            assert gradient is not None
            with torch.no_grad():
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            self._on_gradient(index)

        return collect
