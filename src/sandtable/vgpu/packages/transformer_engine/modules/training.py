"""Adam in a few kernels, states of random generators, checkpoints of activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.transformer_engine.optimizers import multi_tensor_adam, multi_tensor_sgd

__all__ = [
    "CudaRNGStatesTracker",
    "FusedAdam",
    "FusedSGD",
    "activation_recompute_forward",
    "checkpoint",
    "is_fp8_activation_recompute_enabled",
    "multi_tensor_applier",
]

_CHUNK = 2048 * 32


def multi_tensor_applier(operator: Callable[..., Any], flag: Tensor, lists: list[list[Tensor]], *args: Any) -> Any:
    """Call a kernel on lists of tensors."""
    return operator(_CHUNK, flag, lists, *args)


class FusedAdam(torch.optim.Optimizer):
    """Adam and AdamW; parameters of one type are updated together."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None, grad_scaler: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_type: dict[Any, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_type.setdefault((parameter.dtype, parameter.grad.dtype), []).append(parameter)
            for parameters in by_type.values():
                self._update(parameters)

    def _update(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                for name in ("exp_avg", "exp_avg_sq"):
                    self.state[parameter][name] = torch.zeros_like(parameter, dtype=torch.float32)
        states = [self.state[parameter] for parameter in parameters]
        lists: list[Any] = [
            [parameter.grad for parameter in parameters],
            parameters,
            *([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")),
        ]
        multi_tensor_adam(_CHUNK, torch.zeros(1, dtype=torch.int32, device="cuda"), lists)


class FusedSGD(torch.optim.Optimizer):
    """SGD with momentum."""

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.0, weight_decay: float = 0.0, **options: Any
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                if "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            if parameters:
                momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
                flag = torch.zeros(1, dtype=torch.int32, device="cuda")
                multi_tensor_sgd(_CHUNK, flag, [[parameter.grad for parameter in parameters], parameters, momenta])


class CudaRNGStatesTracker:
    """Random generators by name, one of which a layer uses for a while."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, Any]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        self.seeds_.add(seed)
        before = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states_[name] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)


@contextmanager
def activation_recompute_forward(activation_recompute: bool = False, recompute_phase: bool = False) -> Iterator[None]:
    """Mark a forward pass whose activations are computed again; there are no scales to keep for it."""
    yield


def is_fp8_activation_recompute_enabled() -> bool:
    return False


def checkpoint(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run a part of the model and compute it again in the backward pass."""
    from torch.utils.checkpoint import checkpoint as again

    known = {"distribute_saved_activations", "get_rng_state_tracker", "tp_group", "use_reentrant"}
    rest = {name: value for name, value in options.items() if name not in known}
    return again(function, *args, use_reentrant=not rest, **rest)
