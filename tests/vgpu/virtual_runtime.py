"""The runtime of `virtual.py`: the real one, in a zygote that has also loaded what test modules import."""

import importlib

from sandtable.vgpu import runtime
from sandtable.vgpu.capture import Capture

__all__ = ["Capture", "load"]


def load(core_path: str) -> None:
    runtime.load(core_path)
    importlib.import_module("pytest")
