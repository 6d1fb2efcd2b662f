"""`bitsandbytes.optim`, where it is not installed: optimizers with states of 8 bits, one kernel per parameter.

A state of 8 bits has a float32 per 256 numbers beside it and two tables of 256. Small parameters (fewer than 4,096
numbers) keep states of 32 bits. Paged optimizers are as fast as others: their states are in the card's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["GlobalOptimManager", "optimizer_classes"]

_BLOCK = 256
_SMALLEST = 4096
_TWO_STATES = ("Adam", "AdamW", "LAMB", "AdEMAMix")
_ONE_STATE = ("Lion", "SGD", "RMSprop", "Adagrad", "LARS")


class GlobalOptimManager:
    """Keeps wishes for single parameters: which of them have states of 32 bits."""

    _instance: GlobalOptimManager | None = None

    @classmethod
    def get_instance(cls) -> GlobalOptimManager:
        cls._instance = cls._instance or cls()
        return cls._instance

    def __init__(self) -> None:
        self._full_parameters: set[int] = set()

    def register_module_override(self, module: Any, name: str, config: dict[str, Any]) -> None:
        if config.get("optim_bits") == 32:
            self._full_parameters.add(id(getattr(module, name)))

    def register_parameters(self, params: Any) -> None:
        """Accept all parameters."""

    def is_full(self, parameter: Tensor) -> bool:
        return id(parameter) in self._full_parameters


class _Optimizer(torch.optim.Optimizer):
    num_states = 2
    bits = 32

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, *_: Any, optim_bits: int = 0, **options: Any) -> None:
        self._bits = optim_bits or self.bits
        kept = {name: value for name, value in options.items() if name in ("betas", "eps", "weight_decay")}
        super().__init__(params, {"lr": lr, **kept})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter)
        return loss

    def _update(self, parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            self._make_state(parameter, state)
        state["step"] += 1
        tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
        changed = [value for key, value in tensors.items() if not key.startswith("qmap")]
        name = "optimizer_update_8bit_blockwise" if "absmax1" in state else "optimizer_update_32bit"
        record_kernel(
            f"bitsandbytes::{name}",
            inputs=[parameter.grad, parameter.detach(), *tensors.values()],  # type: ignore[list-item]
            outputs=[parameter.detach(), *changed],
            work=Work(),
        )

    def _make_state(self, parameter: Tensor, state: dict[str, Any]) -> None:
        is_full = parameter.numel() < _SMALLEST or GlobalOptimManager.get_instance().is_full(parameter)
        for place in range(1, self.num_states + 1):
            if self._bits == 32 or is_full:
                state[f"state{place}"] = torch.zeros_like(parameter, dtype=torch.float32)
                continue
            state[f"state{place}"] = torch.zeros_like(parameter, dtype=torch.uint8)
            state[f"qmap{place}"] = parameter.new_zeros(256, dtype=torch.float32)
            num_blocks = -(-parameter.numel() // _BLOCK)
            state[f"absmax{place}"] = parameter.new_zeros(num_blocks, dtype=torch.float32)


def optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """Return the package's optimizers by name: `AdamW`, `AdamW8bit`, `PagedAdamW8bit` and so on."""
    made: dict[str, type[torch.optim.Optimizer]] = {}
    for method in (*_TWO_STATES, *_ONE_STATE):
        for prefix in ("", "Paged"):
            for suffix, bits in (("", 32), ("8bit", 8), ("32bit", 32)):
                name = f"{prefix}{method}{suffix}"
                body = {"num_states": 2 if method in _TWO_STATES else 1, "bits": bits}
                made[name] = type(name, (_Optimizer,), body)
    return made
