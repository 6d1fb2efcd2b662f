"""Versions: the weights of a stage as they were, for minibatches that are still under way.

A library lends the edition that lies open; a reader keeps it until he returns, whatever is printed meanwhile. The
parameters of the stage are always the latest version, and any optimizer updates them in place. A minibatch computes
with leaves that share memory with the parameters as long as the version is the latest. When an update would write over
a version that is still needed, the parameters it changes move to new memory first: the leaves keep the old one. So

- a version costs memory only if a minibatch under way needs it, and only for parameters that have changed since,
- a stage with one minibatch under way (the last one) never copies anything,
- autograd sees different tensors for different versions, and its check against writing over them stays on.
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
    """Leaves by name, to be given to `torch.func.functional_call`; `users` minibatches are under way with them."""

    number: int
    weights: dict[str, Tensor]
    users: int = 0


class Versions:
    """All versions of one stage that are still needed. `most_held` is how many there ever were at a time.

    `on_gradient(index)` is called in the backward pass when the gradient of the parameter of that index is in place:
    gradients of all versions add up in the parameters themselves.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer | None, *, on_gradient: Callable[[int], None]) -> None:
        self.parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
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
        """The version, for a minibatch that begins its forward pass."""
        version = self._held[number]
        version.users += 1
        return version

    def release(self, version: Version) -> None:
        """The minibatch has done its backward pass."""
        version.users -= 1

    def update(self, *, keep_from: int) -> None:
        """The optimizer's step makes the next version; those from `keep_from` on will still be asked for."""
        latest = self._held[self.latest]
        self._drop(keep_from)
        weights = self._move_on(latest.weights)
        if self._optimizer is not None:
            self._optimizer.step()
        self._held[latest.number + 1] = Version(latest.number + 1, weights)
        self.most_held = max(self.most_held, len(self._held))

    def restart(self) -> None:
        """Nothing is under way: the latest version is number 0 again."""
        latest = self._held[self.latest]
        assert all(version.users == 0 for version in self._held.values()), "a minibatch is still under way"
        self._held = {0: Version(0, latest.weights)}

    def _drop(self, keep_from: int) -> None:
        for number in [number for number, version in self._held.items() if number < keep_from and not version.users]:
            del self._held[number]

    def _move_on(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameters that are about to change get new memory where a version that is held has the old one."""
        moving = {
            name
            for name, parameter in self.parameters.items()
            if parameter.grad is not None and any(each.weights[name] is weights[name] for each in self._held.values())
        }
        for name in moving:
            self.parameters[name].data = self.parameters[name].data.clone()
        return {**weights, **self._leaves(moving)} if moving else weights

    def _leaves(self, names: set[str] | None = None) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for index, (name, parameter) in enumerate(self.parameters.items()):
            if names is None or name in names:
                # `.data` shares memory but not the version counter, so that an update does not alarm autograd.
                leaf = parameter.data.requires_grad_()
                register: Any = leaf.register_post_accumulate_grad_hook
                register(self._collector(index, parameter))
                found[name] = leaf
        return found

    def _collector(self, index: int, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        def collect(leaf: Tensor) -> None:
            gradient, leaf.grad = leaf.grad, None
            assert gradient is not None
            with torch.no_grad():
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            self._on_gradient(index)

        return collect
