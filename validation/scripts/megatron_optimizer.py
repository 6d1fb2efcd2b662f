"""Mixed precision as Megatron-LM does it: half-precision weights, fp32 copies that Adam works on, a scaled loss.

`GradientBuffer` holds all gradients of a rank in one piece of memory ("local" data parallelism: one all-reduce after
the last micro-batch, nothing overlapped). `MixedPrecisionAdam` is the step: gradients to fp32, unscale and look for
infinities, clip by the norm over the whole model, Adam, and the new weights back to half precision. Both the search for
infinities and the norm are read by the host, which waits for them.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from parallel_layout import Axis, Layout
from torch import Tensor, nn

__all__ = ["GradientBuffer", "MixedPrecisionAdam"]


class GradientBuffer:
    """One buffer; every parameter's `main_grad` is a view of it, added to after each backward."""

    def __init__(self, params: Sequence[nn.Parameter], *, dtype: torch.dtype, dp: Axis) -> None:
        self.dp = dp
        self.flat = torch.zeros(sum(param.numel() for param in params), dtype=dtype, device=params[0].device)
        offset = 0
        for param in params:
            param.main_grad = self.flat[offset : offset + param.numel()].view_as(param)
            param.register_post_accumulate_grad_hook(self._accumulate)
            offset += param.numel()

    @staticmethod
    def _accumulate(param: Tensor) -> None:
        if param.grad is not None:  # else the matrix product has added it
            param.main_grad.add_(param.grad)
            param.grad = None

    def zero(self) -> None:
        """Before a step."""
        self.flat.zero_()

    def reduce(self) -> None:
        """The mean over replicas."""
        self.flat.div_(self.dp.size)
        if self.dp.size > 1:
            dist.all_reduce(self.flat, group=self.dp.group)


class MixedPrecisionAdam:
    """Adam on fp32 copies of the weights (or on the weights, if they are fp32).

    `shares` says how much of each parameter this rank counts in the norm: a gradient that tp ranks all hold is shared
    out between them, and a copy of another stage's parameter counts nothing.
    """

    def __init__(self, params: Sequence[nn.Parameter], *, layout: Layout, shares: Sequence[float], lr: float) -> None:
        self.params, self.layout = list(params), layout
        self.is_mixed = params[0].dtype != torch.float32
        device = params[0].device
        self.main = [p.detach().clone().float().requires_grad_() for p in params] if self.is_mixed else self.params
        self.counted = [i for i, share in enumerate(shares) if share]
        self.shares = torch.tensor([share for share in shares if share], device=device)
        self.optimizer = torch.optim.AdamW(self.main, lr=lr, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
        self.scale = torch.full((1,), 2.0**16 if self.is_mixed else 1.0, device=device)
        self.found_inf = torch.zeros(1, device=device)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """So that small gradients do not vanish in half precision."""
        return loss * self.scale if self.is_mixed else loss

    def make_states(self) -> None:
        """Adam's averages, now rather than in the first step, as after loading a checkpoint."""
        for param in self.main:
            self.optimizer.state[param] = {
                "step": torch.zeros((), device=param.device),
                "exp_avg": torch.zeros_like(param, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(param, requires_grad=False),
            }
        self.optimizer.step()  # there are no gradients yet: nothing changes

    @torch.no_grad()
    def step(self, *, max_norm: float) -> bool:
        """One step, unless a gradient is not finite."""
        for param, main in zip(self.params, self.main, strict=True):
            grad = param.main_grad if hasattr(param, "main_grad") else param.grad
            main.grad = grad.float()
        grads = [main.grad for main in self.main]
        if self.is_mixed and self._unscale(grads):
            self.scale.mul_(0.5)
            return False
        self._clip(grads, max_norm)
        self.optimizer.step()
        if self.is_mixed:
            torch._foreach_copy_(self.params, self.main)
        for main in self.main:
            main.grad = None
        return True

    def _unscale(self, grads: list[Tensor]) -> bool:
        self.found_inf.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(grads, self.found_inf, self.scale.reciprocal())
        dist.all_reduce(self.found_inf, dist.ReduceOp.MAX, group=self.layout.model)
        return self.found_inf.item() > 0

    def _clip(self, grads: list[Tensor], max_norm: float) -> None:
        norms = torch._foreach_norm([grads[i] for i in self.counted])
        total = torch.stack(norms).square_().dot(self.shares)
        dist.all_reduce(total, group=self.layout.model)
        coefficient = max_norm / (total.item() ** 0.5 + 1e-6)
        if coefficient < 1.0:
            torch._foreach_mul_(grads, coefficient)
