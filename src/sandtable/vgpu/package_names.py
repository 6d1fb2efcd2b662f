"""Package names: the packages that a script can import in a rehearsal though they are not installed."""

__all__ = ["REPLACED_PACKAGES"]

REPLACED_PACKAGES = (
    "apex",
    "causal_conv1d",
    "flash_attn",
    "flash_attn_3",
    "grouped_gemm",
    "kernels",
    "mamba_ssm",
    "pynvml",
    "transformer_engine",
    "triton",
    "xformers",
)
"""Those whose description in `vgpu.packages` has `missing` modules; `--without` leaves them missing."""
