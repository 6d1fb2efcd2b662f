"""The CUDA functions below ``torch.cuda``, for the virtual GPU.

A CPU build of torch has the Python half of ``torch.cuda`` and none of the C functions below it. This package
supplies them, under the names of a CUDA build, just before ``torch.cuda`` is imported: torch's own Python code then
runs unchanged.
"""

from __future__ import annotations

from types import ModuleType

from sandtable.vgpu.cuda_api import comm, device, graphs, libraries, memory, streams

__all__ = ["install"]


def install(c_module: ModuleType, core: ModuleType) -> None:
    """Put the CUDA functions into ``torch._C``; must run after ``torch._C`` is loaded and before ``torch.cuda`` is."""
    for part in (device, streams, memory, graphs, libraries, comm):
        for name, value in part.names(core).items():
            setattr(c_module, name, value)
