"""PowerSGD: each gradient matrix as the product of two thin ones.

A gradient M of n x m is sent as P (n x r) and Q (m x r), M ~ P Q^T: one step of power iteration that starts where the
last one ended (warm start), so that over the steps P and Q find the r strongest directions. With the residual E of
earlier steps:

    M = G + E;   P = mean(M Q);   P = orthonormal(P);   Q = mean(M^T P);   G = P Q^T;   E = M - G

P and Q can be summed over workers, so two plain all-reduces compute the mean, at a cost that does not grow with the
number of workers; but a single worker's factors mean nothing to a neighbour. Vectors, and matrices that would not get
smaller, are averaged uncompressed, in the first call. Every worker must start with the same Q: from the seed.

    bytes per step = itemsize * (sum over matrices of (n + m) r + components of all the rest)

Vogels et al., PowerSGD, 2019 (arXiv:1905.13727).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.data.compression.compression import Codec, Compression, require

__all__ = ["PowerSGD", "PowerSGDReducer"]


@dataclass(frozen=True, slots=True, repr=False)
class PowerSGD(Compression):
    """Rank-`rank` gradients: (n + m) r numbers for a matrix of n x m. Only with all-reduce."""

    rank: int = 4
    error_feedback: bool = True
    warm_start: bool = True

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"rank must be at least 1, but got {self.rank}; try 2 or 4")

    def reducer(
        self, shapes: Sequence[torch.Size], dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
    ) -> PowerSGDReducer:
        """Make the reducer for gradients of these shapes; `seed` must be the same on all ranks."""
        require(dtype.is_floating_point, f"gradients must be of a floating dtype, but these are {dtype}")
        return PowerSGDReducer(self, shapes, dtype, torch.device(device), seed)

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        """Estimate as if all were one square matrix; `reducer(shapes, ...).message_bytes` is exact."""
        side = math.sqrt(num_elements)
        return dtype.itemsize * min(2 * side * self.rank, num_elements)

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        raise MethodError(
            f"PowerSGD({self.rank}) must be averaged over all ranks, but this exchange sends messages to some of them; "
            "use exchange=AllReduce(), or compression=TopK(0.01)"
        )


class PowerSGDReducer:
    """The residuals and the factors Q of one model on one rank."""

    def __init__(
        self,
        settings: PowerSGD,
        shapes: Sequence[torch.Size],
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
    ) -> None:
        self.settings = settings
        self.shapes = tuple(torch.Size(shape) for shape in shapes)
        self.dtype, self.device = dtype, device
        # Half precision would lose the orthogonality that everything depends on.
        self._work_dtype = torch.promote_types(dtype, torch.float32)
        self._is_low_rank = [_gets_smaller(shape, settings.rank) for shape in self.shapes]
        self._matrices = [_as_matrix(shape) for shape, is_low in self._pairs() if is_low]
        self._generator = torch.Generator().manual_seed(seed)
        self._right = self._draw()
        self._residuals = [
            torch.zeros(size, dtype=self._work_dtype, device=device)
            for size in (self._matrices if settings.error_feedback else [])
        ]

    @property
    def message_bytes(self) -> int:
        """Bytes averaged per step, exactly."""
        thin = sum((rows + columns) * self._rank(rows, columns) for rows, columns in self._matrices)
        rest = sum(shape.numel() for shape, is_low in self._pairs() if not is_low)
        return (thin + rest) * self._work_dtype.itemsize

    @torch.no_grad()
    def reduce(self, gradients: list[Tensor], mean: Callable[[Tensor], None]) -> None:
        """Replace the gradients with their low-rank mean over all ranks; `mean(t)` averages t in place."""
        require(
            [gradient.shape for gradient in gradients] == list(self.shapes),
            f"gradients must have the shapes {[tuple(s) for s in self.shapes]} of the reducer, "
            f"but got {[tuple(g.shape) for g in gradients]}; make a reducer for each model",
        )
        low = [gradient for gradient, is_low in zip(gradients, self._is_low_rank, strict=True) if is_low]
        rest = [gradient for gradient, is_low in zip(gradients, self._is_low_rank, strict=True) if not is_low]
        targets = self._with_residuals(low)
        if not self.settings.warm_start:
            self._right = self._draw()
        left = [target @ right for target, right in zip(targets, self._right, strict=True)]
        _average_together([*left, *(gradient.to(self._work_dtype) for gradient in rest)], mean, into=[*left, *rest])
        left = [_orthonormal(factor) for factor in left]
        # M^T P as (P^T M)^T, which reads M along its rows: ten times as fast.
        self._right = [(factor.t() @ target).t().contiguous() for target, factor in zip(targets, left, strict=True)]
        _average_together(self._right, mean, into=self._right)
        for number, gradient in enumerate(low):
            estimate = left[number] @ self._right[number].t()
            gradient.copy_(estimate.view(gradient.shape))
            if self.settings.error_feedback:
                torch.sub(targets[number], estimate, out=self._residuals[number])

    def state_dict(self) -> dict[str, Any]:
        """Return residuals, factors and the state of the generator."""
        return {
            "residuals": [residual.clone() for residual in self._residuals],
            "right": [factor.clone() for factor in self._right],
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state_dict()`."""
        for name, ours in (("residuals", self._residuals), ("right", self._right)):
            require(
                [tensor.shape for tensor in state[name]] == [tensor.shape for tensor in ours],
                f"the saved {name} must have the shapes of this model, but they have "
                f"{[tuple(tensor.shape) for tensor in state[name]]}",
            )
        self._residuals = [saved.to(self.device, self._work_dtype, copy=True) for saved in state["residuals"]]
        self._right = [saved.to(self.device, self._work_dtype, copy=True) for saved in state["right"]]
        self._generator.set_state(state["generator"])

    def _with_residuals(self, gradients: list[Tensor]) -> list[Tensor]:
        targets = [
            gradient.to(self._work_dtype).reshape(size)
            for gradient, size in zip(gradients, self._matrices, strict=True)
        ]
        for gradient in targets:
            require(
                bool(torch.isfinite(gradient.sum())),
                "gradients must be finite to be compressed, but one is not; lower the learning rate, clip, or skip "
                "the step (as a gradient scaler does)",
            )
        if not self.settings.error_feedback:
            return targets
        return [target + residual for target, residual in zip(targets, self._residuals, strict=True)]

    def _draw(self) -> list[Tensor]:
        """Draw first factors on the host: the same on all ranks, whatever the device."""
        shapes = [(columns, self._rank(rows, columns)) for rows, columns in self._matrices]
        drawn = [torch.randn(shape, generator=self._generator) for shape in shapes]
        return [factor.to(self.device, self._work_dtype) for factor in drawn]

    def _rank(self, rows: int, columns: int) -> int:
        return min(self.settings.rank, rows, columns)

    def _pairs(self) -> list[tuple[torch.Size, bool]]:
        return list(zip(self.shapes, self._is_low_rank, strict=True))


def _as_matrix(shape: torch.Size) -> tuple[int, int]:
    return shape[0], shape[1:].numel()


def _gets_smaller(shape: torch.Size, rank: int) -> bool:
    if len(shape) < 2 or shape.numel() == 0:
        return False
    rows, columns = _as_matrix(shape)
    return (rows + columns) * min(rank, rows, columns) < rows * columns


def _orthonormal(matrix: Tensor) -> Tensor:
    """Return orthonormal columns of the same span. All ranks get the same result from the same numbers."""
    basis: Tensor = torch.linalg.qr(matrix).Q
    return basis


def _average_together(tensors: list[Tensor], mean: Callable[[Tensor], None], *, into: list[Tensor]) -> None:
    """Average all tensors in one call."""
    if not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    mean(flat)
    for target, part in zip(into, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        target.copy_(part.view(target.shape))
