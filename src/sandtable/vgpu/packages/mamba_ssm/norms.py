"""`mamba_ssm.ops.triton.layer_norm`, which is flash_attn's."""

from sandtable.vgpu.packages.flash_attn.norms import RMSNorm, layer_norm_fn, rms_norm_fn

__all__ = ["RMSNorm", "layer_norm_fn", "rms_norm_fn"]
