"""What one operator costs on one device, and what issuing it costs the host."""

from sandtable.engine.compute.measured import MeasuredRow, MeasuredTable

__all__ = ["MeasuredRow", "MeasuredTable"]
