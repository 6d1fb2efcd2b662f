"""AdamW as Composer has it: weight by weight, nothing fused, with the step number on the card.

Reading that number makes the host wait for the card once a weight, and each weight is swept over eight times: a visible
share of a step whose batch is small. (Its weight decay, which the learning rate does not scale, is 0 in the runs here.)
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class DecoupledAdamW(torch.optim.Optimizer):
    """Loshchilov and Hutter 2017 (arXiv:1711.05101), without the decay."""

    def __init__(
        self, params: Iterable[Tensor], *, lr: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            weights = [param for param in group["params"] if param.grad is not None]
            for weight in weights:  # first all step numbers, as Composer does
                self._state_of(weight)["step"] += 1
            for weight in weights:
                self._move(weight, group)

    def _state_of(self, weight: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[weight]
        if not state:
            local = _local(weight)
            state["step"] = torch.zeros((), device=local.device)
            state["mean"], state["square"] = torch.zeros_like(local), torch.zeros_like(local)
        return state

    def _move(self, weight: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        assert weight.grad is not None
        grad, mean, square = _local(weight.grad), state["mean"], state["square"]
        step = state["step"].item()
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        spread = (square.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        _local(weight).addcdiv_(mean, spread, value=-group["lr"] / (1 - beta1**step))


def _local(tensor: Tensor) -> Tensor:
    """The shard this rank holds: arithmetic on it needs none of DTensor's care."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
