"""Rates: how fast a device multiplies numbers of one type at best, and on which of its units.

By default torch leaves float32 matrix products on the ordinary lanes, but lets convolutions use tf32. A product's
record says if the script allows tf32; that it forbids it for convolutions is not noticed. Kernels of Triton use it
unless they say otherwise; the type of their products is then `tf32`.
"""

from dataclasses import dataclass

from sandtable.cluster.device import Device

__all__ = ["Rate", "best_rate"]


@dataclass(frozen=True, slots=True)
class Rate:
    """`peak` operations per second; `measured` is the fastest on record, 0 if there is none."""

    peak: float
    on_matrix_units: bool
    measured: float = 0.0

    def reachable(self, *, matrix_share: float, vector_share: float) -> float:
        """Return the operations per second of a long inner loop: a share of the peak, at most the measured rate."""
        reached = self.peak * (matrix_share if self.on_matrix_units else vector_share)
        return min(reached, self.measured) if self.measured else reached


_DOUBLE_RATE_CHIPS = frozenset({"sm_37", "sm_60", "sm_70", "sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950"})
"""Chips with float64 at half (sm_37: a third) of the rate of float32; others have a thirty-second."""


def best_rate(device: Device, dtype: str, *, tf32: bool = False) -> Rate:
    """Return the rate of products of `dtype`: of the matrix units if they support it, else of the ordinary lanes."""
    matmul, vector, seen = device.matmul, device.vector, device.measured_matmul
    if dtype in ("float16", "bfloat16"):
        peak = matmul.float16 if dtype == "float16" else matmul.bfloat16
        if peak > max(vector.float16, vector.float32):
            return Rate(peak, True, seen.bfloat16)
        return Rate(max(peak, vector.float16 if dtype == "float16" else 0, vector.float32), False)
    if dtype.startswith("float8") and matmul.float8:
        return Rate(matmul.float8, True, seen.float8)
    if dtype in ("int8", "uint8", "qint8", "quint8") and matmul.int8:
        return Rate(matmul.int8, True)
    if (dtype == "tf32" or (tf32 and dtype == "float32")) and matmul.tf32 > vector.float32:
        return Rate(matmul.tf32, True)
    single = matmul.float32 or vector.float32
    if dtype in ("float64", "complex64", "complex128"):
        return Rate(single / (2 if device.architecture in _DOUBLE_RATE_CHIPS or device.vendor == "cpu" else 32), False)
    return Rate(single, False)
