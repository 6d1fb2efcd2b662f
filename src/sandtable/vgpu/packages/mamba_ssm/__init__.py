"""mamba_ssm: selective scans (Mamba 1, CUDA) and their blocked form by matrix products (Mamba 2, Triton).

If mamba_ssm is installed, its Python code runs: the scan of Mamba 1 is ours, and the rest is Triton's. If not,
the functions that models call are those of the files here.
"""

from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    empty, norms, blocks = names_of(), names_of("mamba_ssm.norms"), names_of("mamba_ssm.blocks")
    return Package(
        name="mamba_ssm",
        version="2.3.0",
        compiled={"selective_scan_cuda": names_of("mamba_ssm.compiled")},
        missing={
            "mamba_ssm": empty,
            "mamba_ssm.ops": empty,
            "mamba_ssm.ops.selective_scan_interface": names_of("mamba_ssm.scan"),
            "mamba_ssm.ops.triton": empty,
            "mamba_ssm.ops.triton.layer_norm": norms,
            "mamba_ssm.ops.triton.layernorm": norms,
            "mamba_ssm.ops.triton.layernorm_gated": names_of("mamba_ssm.gated_norm"),
            "mamba_ssm.ops.triton.selective_state_update": names_of("mamba_ssm.scan"),
            "mamba_ssm.ops.triton.ssd_combined": blocks,
        },
    )
