"""Known packages: those that have a file here, and how a rank follows their imports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

from sandtable.vgpu.packages import (
    apex,
    bitsandbytes,
    causal_conv1d,
    cuda_sources,
    deep_ep,
    deepspeed,
    flash_attn,
    flash_attn_3,
    grouped_gemm,
    hub_kernels,
    liger_kernel,
    mamba_ssm,
    megatron,
    nvrtc,
    pynvml,
    symmetric_memory,
    transformer_engine,
    triton,
    xformers,
)
from sandtable.vgpu.packages.importing import PackageFinder
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["PACKAGES", "follow_packages"]

PACKAGES: tuple[Callable[[Watcher], Package], ...] = (
    apex.package,
    bitsandbytes.package,
    causal_conv1d.package,
    cuda_sources.package,
    deep_ep.package,
    deepspeed.package,
    flash_attn.package,
    flash_attn_3.package,
    grouped_gemm.package,
    hub_kernels.package,
    liger_kernel.package,
    mamba_ssm.package,
    megatron.package,
    nvrtc.package,
    pynvml.package,
    symmetric_memory.package,
    transformer_engine.package,
    triton.package,
    xformers.package,
)
"""A function each, because what is changed may report to the watcher."""


def follow_packages(watcher: Watcher, *more: Package, without: Collection[str] = ()) -> PackageFinder:
    """Adapt or make modules that this process imports from now on; return what finds them.

    `more` are packages without a file here. Packages named in `without` stay missing if they are.
    """
    packages = [describe(watcher) for describe in PACKAGES]
    finder = PackageFinder([*packages, *more], watcher, without=without)
    sys.meta_path.insert(0, finder)
    finder.adapt_imported()
    return finder
