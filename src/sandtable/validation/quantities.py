"""Quantities: what publications report, computed from a prediction."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sandtable.errors import ValidationSetError
from sandtable.units import GIB
from sandtable.validation.rows import PublishedRow

__all__ = ["QUANTITIES", "TITLES", "Prediction", "Quantity", "quantity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The last step of a rehearsed row, and the peak memory of the fullest rank."""

    step_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    breakdown_ns: dict[str, int] = field(default_factory=dict)
    """Mean over ranks; exposed communication as `communication.<axis>`."""
    basis: dict[str, float] = field(default_factory=dict)
    """Share of compute time by source of its figures."""


Quantity = Callable[[Prediction, PublishedRow], float]

_STATE_BYTES = 18
"""Per parameter in mixed precision: float16 weight; float32 gradient, weight and both moments of Adam."""


def quantity(name: str) -> Quantity:
    """Return the quantity of that name."""
    if name not in QUANTITIES:
        raise ValidationSetError(f"quantity must be one of {', '.join(QUANTITIES)}, but got '{name}'; correct the file")
    return QUANTITIES[name]


def _step_s(prediction: Prediction, row: PublishedRow) -> float:
    return prediction.step_ns / 1e9


def _step_ms(prediction: Prediction, row: PublishedRow) -> float:
    return prediction.step_ns / 1e6


def _samples_per_s(prediction: Prediction, row: PublishedRow) -> float:
    return _setting(row, "global_batch") / _step_s(prediction, row)


def _samples_per_gpu_s(prediction: Prediction, row: PublishedRow) -> float:
    return _samples_per_s(prediction, row) / row.gpus


def _tokens_per_gpu_s(prediction: Prediction, row: PublishedRow) -> float:
    return _samples_per_gpu_s(prediction, row) * _setting(row, "seq")


def _work_per_gpu_s(prediction: Prediction, row: PublishedRow) -> float:
    return _setting(row, "work") / row.gpus / _step_s(prediction, row)


def _peak_gib(prediction: Prediction, row: PublishedRow) -> float:
    return prediction.peak_reserved_bytes / GIB


def _peak_allocated_gib(prediction: Prediction, row: PublishedRow) -> float:
    return prediction.peak_allocated_bytes / GIB


def _peak_allocated_gb(prediction: Prediction, row: PublishedRow) -> float:
    return prediction.peak_allocated_bytes / 1e9


def _layers_allocated_gib(prediction: Prediction, row: PublishedRow) -> float:
    """Leave out the embeddings of the first stage, for figures that count only the parameters of layers."""
    num_rows = _setting(row, "vocab") / _setting(row, "tp") + _setting(row, "seq")
    return (prediction.peak_allocated_bytes - _STATE_BYTES * num_rows * _setting(row, "hidden")) / GIB


def _setting(row: PublishedRow, name: str) -> float:
    if name not in row.settings:
        raise ValidationSetError(f"row {row.id} must have the setting '{name}' for this quantity; add it to the file")
    return float(row.settings[name])


QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {
        "step_s": _step_s,
        "step_ms": _step_ms,
        "samples_per_s": _samples_per_s,
        "samples_per_gpu_s": _samples_per_gpu_s,
        "tokens_per_gpu_s": _tokens_per_gpu_s,
        "work_per_gpu_s": _work_per_gpu_s,
        "peak_gib": _peak_gib,
        "peak_allocated_gib": _peak_allocated_gib,
        "peak_allocated_gb": _peak_allocated_gb,
        "layers_allocated_gib": _layers_allocated_gib,
    }
)

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "step_s": "seconds per step",
        "step_ms": "milliseconds per step",
        "samples_per_s": "samples per second",
        "samples_per_gpu_s": "samples per second and GPU",
        "tokens_per_gpu_s": "tokens per second and GPU",
        "work_per_gpu_s": "work per second and GPU",
        "peak_gib": "GiB reserved",
        "peak_allocated_gib": "GiB allocated",
        "peak_allocated_gb": "GB allocated",
        "layers_allocated_gib": "GiB allocated, without embeddings",
    }
)
