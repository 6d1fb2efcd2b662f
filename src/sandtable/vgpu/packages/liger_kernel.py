"""liger-kernel: fused layers for language models, in Triton.

It is pure Python, so it is used where it is installed (`pip install --no-deps liger-kernel`), on the recorder for
Triton kernels. Here stands what its kernels do that their arguments do not tell.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import describe_kernel
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]

_NORMS = ("rms_norm", "block_rms_norm", "fused_add_rms_norm", "modulated_rms_norm", "layer_norm", "group_norm")


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(name="liger_kernel", adaptations={"liger_kernel": _describe_kernels})


def _describe_kernels(module: ModuleType) -> None:
    for norm in _NORMS:
        for direction in ("forward", "backward"):
            describe_kernel(f"_{norm}_{direction}_kernel", lambda **_: Work(family="normalisation"))
    describe_kernel("liger_cross_entropy_kernel", _cross_entropy)


def _cross_entropy(X_ptr: Any, **_: Any) -> Work:  # noqa: N803
    """Read the logits for the sum and again for the gradient, which takes their place."""
    return Work(family="normalisation", bytes_read=2 * X_ptr.numel() * X_ptr.element_size())
