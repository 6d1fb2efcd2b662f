"""liger-kernel: fused layers for language models, in Triton.

It is pure Python, so it is used where it is installed (`pip install --no-deps liger-kernel`), on the recorder for
Triton kernels. Here stands what its kernels do that their arguments do not tell. Where it is missing, the layers that
training scripts use are ours.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import describe_kernel
from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]

_NORMS = ("rms_norm", "block_rms_norm", "fused_add_rms_norm", "modulated_rms_norm", "layer_norm", "group_norm")


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    layers, losses = names_of("liger_kernel.layers"), names_of("liger_kernel.losses")
    return Package(
        name="liger_kernel",
        distribution="liger_kernel",
        version="0.8.5",
        adaptations={"liger_kernel": _describe_kernels},
        missing={
            "liger_kernel": names_of(),
            "liger_kernel.chunked_loss": _fill_chunked_losses,
            "liger_kernel.transformers": _fill,
            "liger_kernel.transformers.monkey_patch": _fill,
            "liger_kernel.transformers.functional": _fill,
            "liger_kernel.transformers.cross_entropy": losses,
            "liger_kernel.transformers.fused_linear_cross_entropy": losses,
            "liger_kernel.transformers.geglu": layers,
            "liger_kernel.transformers.layer_norm": layers,
            "liger_kernel.transformers.rms_norm": layers,
            "liger_kernel.transformers.rope": layers,
            "liger_kernel.transformers.swiglu": layers,
        },
    )


def _fill(module: ModuleType) -> None:
    from sandtable.vgpu.packages.liger_kernel.patches import fill_patches

    names_of("liger_kernel.layers", "liger_kernel.losses")(module)
    fill_patches(module)


def _fill_chunked_losses(module: ModuleType) -> None:
    from sandtable.vgpu.packages.liger_kernel.chunked import fill_chunked_losses

    fill_chunked_losses(module)


def _describe_kernels(module: ModuleType) -> None:
    for norm in _NORMS:
        for direction in ("forward", "backward"):
            describe_kernel(f"_{norm}_{direction}_kernel", lambda **_: Work(family="normalisation"))
    describe_kernel("liger_cross_entropy_kernel", _cross_entropy)


def _cross_entropy(X_ptr: Any, **_: Any) -> Work:  # noqa: N803
    """Read the logits for the sum and again for the gradient, which takes their place."""
    return Work(family="normalisation", bytes_read=2 * X_ptr.numel() * X_ptr.element_size())
