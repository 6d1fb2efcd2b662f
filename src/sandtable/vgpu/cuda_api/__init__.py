"""The CUDA functions below ``torch.cuda``, for the virtual GPU.

A CPU build of torch has the Python half of ``torch.cuda`` and none of the C functions below it; in a CUDA build those
functions ask the driver. This package puts its own in their place, under the same names, just before ``torch.cuda`` is
imported: torch's own Python code then runs unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from sandtable.vgpu.cuda_api import comm, device, graphs, libraries, memory, streams

__all__ = ["install"]

_REFUSED = ("_cuda_", "_gds_")
"""Prefixes of functions that ask the driver: those that are not ours raise an error when they are called."""

_REMOVED = ("_nccl_", "_CUDAGreenContext", "_cusparselt")
"""Prefixes of optional parts of a build: torch looks whether they are there, and goes on without those not ours."""

_OF_BUILD = ("_nccl_version", "_nccl_version_suffix", "_cuda_getCompiledVersion")
"""What a CUDA build says about itself, without a card."""


def install(c_module: ModuleType, core: ModuleType) -> None:
    """Put the CUDA functions into ``torch._C``; must run after ``torch._C`` is loaded and before ``torch.cuda`` is."""
    of_build = {name for name in _OF_BUILD if hasattr(c_module, name)}
    ours: dict[str, Any] = {}
    for part in (device, streams, memory, graphs, libraries, comm):
        ours |= part.names(core)
    for name in set(dir(c_module)) - ours.keys():
        if name.startswith(_REFUSED):
            ours[name] = _refusing(name)
        elif name.startswith(_REMOVED):
            delattr(c_module, name)
    for name in ours.keys() - of_build:
        setattr(c_module, name, ours[name])


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"sandtable: torch._C.{name} is not rehearsed, because it asks a real card; run the script without it"
        )

    return refuse
