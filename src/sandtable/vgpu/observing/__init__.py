"""Observing: what a script asks of torch beside work, noted for the rules of `check`.

One file per part of torch that is watched. Each wraps a few functions of torch and notes events (`events.py`); none
changes what they do. `Observer` holds them together.
"""

from sandtable.vgpu.observing.observer import Observer, observe

__all__ = ["Observer", "observe"]
