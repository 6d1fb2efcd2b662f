"""Recipes: how numbers are scaled for FP8, and the context in which layers use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.transformer_engine.kernels import launch

__all__ = [
    "DelayedScaling",
    "FP8GlobalStateManager",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Float8Tensor",
    "Format",
    "MXFP8BlockScaling",
    "Recipe",
    "autocast",
    "cast_to_fp8",
    "check_fp8_support",
    "check_mxfp8_support",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_fp8_recipe",
    "is_fp8_available",
]


class Format(Enum):
    """The kinds of FP8: E4M3 forward, and E5M2 for gradients if HYBRID."""

    E4M3 = "E4M3"
    E5M2 = "E5M2"
    HYBRID = "HYBRID"


@dataclass
class Recipe:
    """How a tensor's scale is found."""

    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def delayed(self) -> bool:
        return isinstance(self, DelayedScaling)

    def mxfp8(self) -> bool:
        return isinstance(self, MXFP8BlockScaling)

    def float8_current_scaling(self) -> bool:
        return isinstance(self, Float8CurrentScaling)

    def float8_block_scaling(self) -> bool:
        return isinstance(self, Float8BlockScaling)


@dataclass
class DelayedScaling(Recipe):
    """One scale per tensor, from the largest values of earlier steps."""

    margin: int = 0
    interval: int = 1
    amax_history_len: int = 1024
    amax_compute_algo: Any = "max"
    scaling_factor_compute_algo: Any = None
    override_linear_precision: Any = (False, False, False)
    reduce_amax: bool = True


@dataclass
class Float8CurrentScaling(Recipe):
    """One scale per tensor, from its own largest value."""

    use_power_2_scales: bool = False
    amax_epsilon: float = 0.0


@dataclass
class Float8BlockScaling(Recipe):
    """One scale per block of 128 elements, or of 128 x 128."""


@dataclass
class MXFP8BlockScaling(Recipe):
    """One scale per 32 elements."""

    margin: int = 0


class FP8GlobalStateManager:
    """The recipe of the innermost context; None outside."""

    recipe: Recipe | None = None
    is_first_module = False

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        return cls.recipe is not None

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        return cls.recipe or DelayedScaling()

    @classmethod
    def is_fp8_available(cls) -> tuple[bool, str]:
        return check_fp8_support()

    @classmethod
    def reset(cls) -> None:
        cls.recipe = None


@contextmanager
def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
    recipe: Recipe | None = None,
    **options: Any,
) -> Iterator[None]:
    """Have layers compute in FP8."""
    before = FP8GlobalStateManager.recipe
    FP8GlobalStateManager.recipe = (fp8_recipe or recipe or DelayedScaling()) if enabled else None
    try:
        yield
    finally:
        FP8GlobalStateManager.recipe = before


autocast = fp8_autocast


@contextmanager
def fp8_model_init(enabled: bool = True, recipe: Recipe | None = None, **options: Any) -> Iterator[None]:
    """Make layers; weights keep their own type here."""
    yield


def get_default_fp8_recipe() -> Recipe:
    return DelayedScaling()


def check_fp8_support() -> tuple[bool, str]:
    """Return whether the card has FP8, and why not."""
    has = torch.cuda.get_device_capability() >= (8, 9)
    return has, "" if has else "Device compute capability 8.9 or higher required for FP8 execution."


def check_mxfp8_support() -> tuple[bool, str]:
    has = torch.cuda.get_device_capability() >= (10, 0)
    return has, "" if has else "Device compute capability 10.0 or higher required for MXFP8 execution."


def is_fp8_available(return_reason: bool = False) -> Any:
    return check_fp8_support() if return_reason else check_fp8_support()[0]


class Float8Tensor(Tensor):
    """The type of weights that are kept in FP8, of which there are none here."""


class CastTensor:
    """A tensor in FP8, in rows and, if a product needs it, in columns."""

    _fp8_dtype = torch.float8_e4m3fn

    def __init__(self, data: Tensor, columns: Tensor | None, dtype: torch.dtype) -> None:
        self._data = data
        self._transpose = columns
        self._scale_inv = torch.empty(1, dtype=torch.float32, device=data.device)
        self.dtype = dtype

    def size(self, *dim: int) -> Any:
        return self._data.size(*dim)


def cast(tensor: Tensor, recipe: Recipe, *, columns: bool) -> CastTensor:
    """Cast to FP8: one kernel, after one that finds the scale if that depends on the tensor."""
    columns = columns and torch.cuda.get_device_capability() < (10, 0)
    data = torch.empty(tensor.shape, dtype=torch.uint8, device=tensor.device)
    shape = (tensor.shape[-1], *tensor.shape[:-1])
    result = CastTensor(data, torch.empty(shape, dtype=torch.uint8, device="cuda") if columns else None, tensor.dtype)
    if recipe.float8_current_scaling():
        launch("compute_amax", [tensor], [result._scale_inv], "reduction")
    launch("quantize", [tensor], [data, result._transpose, result._scale_inv], "elementwise")
    return result


def cast_to_fp8(inp: Tensor, *settings: Any, out: Tensor | None = None, **options: Any) -> Tensor:
    """Cast to FP8 by a scale that is known."""
    result = torch.empty(inp.shape, dtype=torch.uint8, device=inp.device) if out is None else out
    launch("cast_to_fp8", [inp], [result], "elementwise")
    return result
