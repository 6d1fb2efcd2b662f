"""Runs for their numbers: all tensors have values, and what training computes is saved (see docs/parity.md)."""

from sandtable.vgpu.real_values.recorder import ValueRecorder
from sandtable.vgpu.real_values.settings import ValueSettings

__all__ = ["ValueRecorder", "ValueSettings"]
