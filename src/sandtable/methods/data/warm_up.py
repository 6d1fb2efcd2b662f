"""Large minibatches: the linear scaling rule with gradual warm-up.

k times the batch size allows k times the learning rate, but not at once: over the first five epochs the rate rises
linearly from η to kη. Goyal et al., "Accurate, Large Minibatch SGD", 2017.
"""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sandtable.errors import MethodError

__all__ = ["WarmUp"]


class WarmUp(LRScheduler):
    """η → scale·η over `epochs`, then constant; `scale` is usually the number of workers.

    Call `step()` once per epoch or, with `steps_per_epoch`, once per step. It multiplies the current rate, so it
    combines with a decay such as MultiStepLR: call `step()` on both.
    """

    def __init__(
        self, optimizer: Optimizer, *, scale: float, epochs: int = 5, steps_per_epoch: int = 1, last_epoch: int = -1
    ) -> None:
        if scale <= 0:
            raise MethodError(f"scale must be above 0, but got {scale:g}; give the number of workers")
        if epochs < 0 or steps_per_epoch < 1:
            raise MethodError(
                f"epochs must be 0 or more and steps_per_epoch 1 or more, but got {epochs} and {steps_per_epoch}; "
                "try epochs=5"
            )
        self.scale = scale
        self.num_steps = epochs * steps_per_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        now = self._factor(self.last_epoch)
        before = 1.0 if self.last_epoch == 0 else self._factor(self.last_epoch - 1)
        return [float(group["lr"]) * now / before for group in self.optimizer.param_groups]

    def _factor(self, step: int) -> float:
        """Compute 1 + (k - 1) · the completed share of the warm-up."""
        share = 1.0 if step >= self.num_steps else step / self.num_steps
        return 1 + (self.scale - 1) * share
