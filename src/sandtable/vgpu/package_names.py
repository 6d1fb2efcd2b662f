"""Package names: the packages that a script can import in a rehearsal though they are not installed."""

__all__ = ["REPLACED_PACKAGES"]

REPLACED_PACKAGES = (
    "apex",
    "bitsandbytes",
    "causal_conv1d",
    "deep_ep",
    "flash_attn",
    "flash_attn_3",
    "grouped_gemm",
    "kernels",
    "liger_kernel",
    "mamba_ssm",
    "pynvml",
    "transformer_engine",
    "triton",
    "xformers",
)
"""Those whose description in `vgpu.packages` has `missing` modules; `--without` leaves them missing."""
