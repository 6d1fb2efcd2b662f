"""Quantities: what publications report, worked out of a prediction."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sandtable.errors import ValidationSetError
from sandtable.units import GIB
from sandtable.validation.prediction import Prediction
from sandtable.validation.rows import Row

__all__ = ["QUANTITIES", "TITLES", "Quantity", "quantity"]

Quantity = Callable[[Prediction, Row], float]

_STATE_BYTES = 18
"""Of a parameter in mixed precision: float16 weight, and in float32 gradient, weight and the two moments of Adam."""


def quantity(name: str) -> Quantity:
    """The quantity of that name."""
    if name not in QUANTITIES:
        raise ValidationSetError(f"quantity must be one of {', '.join(QUANTITIES)}, but got '{name}'; correct the file")
    return QUANTITIES[name]


def _step_s(prediction: Prediction, row: Row) -> float:
    return prediction.step_ns / 1e9


def _step_ms(prediction: Prediction, row: Row) -> float:
    return prediction.step_ns / 1e6


def _samples_per_s(prediction: Prediction, row: Row) -> float:
    return _setting(row, "global_batch") / _step_s(prediction, row)


def _samples_per_gpu_s(prediction: Prediction, row: Row) -> float:
    return _samples_per_s(prediction, row) / row.gpus


def _tokens_per_gpu_s(prediction: Prediction, row: Row) -> float:
    return _samples_per_gpu_s(prediction, row) * _setting(row, "seq")


def _work_per_gpu_s(prediction: Prediction, row: Row) -> float:
    return _setting(row, "work") / row.gpus / _step_s(prediction, row)


def _peak_gib(prediction: Prediction, row: Row) -> float:
    return prediction.peak_reserved_bytes / GIB


def _peak_allocated_gib(prediction: Prediction, row: Row) -> float:
    return prediction.peak_allocated_bytes / GIB


def _peak_allocated_gb(prediction: Prediction, row: Row) -> float:
    return prediction.peak_allocated_bytes / 1e9


def _layers_allocated_gib(prediction: Prediction, row: Row) -> float:
    """On the first stage, less the states of its embeddings: for figures that count the parameters of layers only."""
    num_rows = _setting(row, "vocab") / _setting(row, "tp") + _setting(row, "seq")
    return (prediction.peak_allocated_bytes - _STATE_BYTES * num_rows * _setting(row, "hidden")) / GIB


def _setting(row: Row, name: str) -> float:
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
        "step_s": "seconds a step",
        "step_ms": "milliseconds a step",
        "samples_per_s": "samples a second",
        "samples_per_gpu_s": "samples a second and GPU",
        "tokens_per_gpu_s": "tokens a second and GPU",
        "work_per_gpu_s": "work a second and GPU",
        "peak_gib": "GiB reserved",
        "peak_allocated_gib": "GiB allocated",
        "peak_allocated_gb": "GB allocated",
        "layers_allocated_gib": "GiB allocated, without embeddings",
    }
)
