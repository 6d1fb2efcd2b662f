"""`apex.optimizers`: one update of many tensors in a few kernels, where apex is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.apex import multi_tensor

__all__ = [
    "FusedAdagrad",
    "FusedAdam",
    "FusedLAMB",
    "FusedNovoGrad",
    "FusedSGD",
    "MultiTensorApply",
    "multi_tensor_applier",
]


class MultiTensorApply:
    """Calls a function of `amp_C` with the size of its chunks."""

    available = True
    warned = False

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> None:
        """Do nothing: it is available."""

    def __call__(self, op: Callable[..., Any], noop_flag_buffer: Tensor, tensor_lists: Any, *args: Any) -> Any:
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)


class _FusedOptimizer(torch.optim.Optimizer):
    """Updates the parameters of each type together: gradients, parameters and states in lists."""

    states: tuple[str, ...] = ()
    state_dtype: torch.dtype | None = None
    """The states' type, by default their parameters'."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, set_grad_none: bool = True, **defaults: Any) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(params, {"lr": lr, **defaults})
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int32, device="cuda")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop or clear the gradients."""
        super().zero_grad(set_to_none=self.set_grad_none and set_to_none)

    @torch.no_grad()
    def step(self, closure: Any = None, **_: Any) -> Any:
        """Update all parameters that have gradients."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
                self._update([parameter for parameter in parameters if parameter.dtype == dtype])
        return loss

    def _update(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            for name in self.states:
                if name not in state:
                    state[name] = torch.zeros_like(parameter, dtype=self.state_dtype)
        states = [[self.state[parameter][name] for parameter in parameters] for name in self.states]
        grads = [parameter.grad for parameter in parameters]
        multi_tensor_applier(self.kernel, self._dummy_overflow_buf, [grads, parameters, *states])

    def kernel(self, *args: Any) -> Any:
        """Launch the kernels of one update."""
        raise NotImplementedError


class FusedAdam(_FusedOptimizer):
    """Adam and AdamW; moments are float32."""

    states: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    state_dtype = torch.float32

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        **_: Any,
    ) -> None:
        self.adam_w_mode, self.capturable = adam_w_mode, capturable
        if master_weights:
            self.states = ("exp_avg", "exp_avg_sq", "master_param")
        defaults = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "bias_correction": bias_correction}
        super().__init__(params, lr, set_grad_none, **defaults)

    def kernel(self, *args: Any) -> Any:
        """Launch the kernels of one update."""
        has_master = "master_param" in self.states
        return (multi_tensor.multi_tensor_adam_capturable_master if has_master else multi_tensor.multi_tensor_adam)(
            *args
        )


class FusedLAMB(_FusedOptimizer):
    """LAMB: Adam whose steps are scaled by norms, after a clip by the norm of all gradients."""

    states = ("exp_avg", "exp_avg_sq")

    def step(self, closure: Any = None, **options: Any) -> Any:
        """Take the norm of all gradients, then update."""
        grads = [
            parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        for dtype in dict.fromkeys(grad.dtype for grad in grads):
            same = [grad for grad in grads if grad.dtype == dtype]
            multi_tensor_applier(multi_tensor.multi_tensor_l2norm, self._dummy_overflow_buf, [same], False)
        return super().step(closure, **options)

    def kernel(self, *args: Any) -> Any:
        """Launch the kernels of one update."""
        return multi_tensor.multi_tensor_lamb(*args)


class FusedSGD(_FusedOptimizer):
    """SGD with momentum."""

    states = ("momentum_buffer",)

    def kernel(self, *args: Any) -> Any:
        """Launch the kernels of one update."""
        return multi_tensor.multi_tensor_sgd(*args)


class FusedAdagrad(_FusedOptimizer):
    """Adagrad."""

    states = ("sum",)

    def kernel(self, *args: Any) -> Any:
        """Launch the kernels of one update."""
        return multi_tensor.multi_tensor_adagrad(*args)


class FusedNovoGrad(_FusedOptimizer):
    """NovoGrad: a moment per element, a norm per tensor."""

    states = ("exp_avg",)

    def kernel(self, *args: Any) -> Any:
        """Launch the kernels of one update."""
        multi_tensor.multi_tensor_l2norm(args[0], args[1], [args[2][0]], True)
        return multi_tensor.multi_tensor_novograd(*args)
