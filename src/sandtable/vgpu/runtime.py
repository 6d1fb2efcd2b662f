"""The runtime: what the zygote and its ranks need of the virtual GPU."""

from sandtable.vgpu.capture import Capture
from sandtable.vgpu.preload import load

__all__ = ["Capture", "load"]
