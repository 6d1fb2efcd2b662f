"""FlashAttention 3: attention for Hopper, in half precision and, forward only, in FP8.

If it is installed (a module `flash_attn_interface` and a library `flash_attn_3`), its Python code runs on the operators
`flash_attn_3::fwd` and `flash_attn_3::bwd`, which are ours. If not, so are its public functions. FlashAttention 4
(`flash_attn.cute`) compiles its kernels from Python when they are called; its public functions are always ours, and are
recorded as those of FlashAttention 3.
"""

from types import ModuleType

from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="flash_attn_3",
        version="3.0.0",
        adaptations={"flash_attn_interface": _call_operators},
        compiled={
            "flash_attn_3._C": names_of("flash_attn_3.operators"),
            "flash_attn.cute": names_of("flash_attn_3.cute"),
            "flash_attn.cute.interface": names_of("flash_attn_3.cute"),
        },
        missing={
            "flash_attn_3": names_of(),
            "flash_attn_3.flash_attn_interface": names_of("flash_attn_3.functions"),
            "flash_attn_interface": names_of("flash_attn_3.functions"),
        },
    )


def _call_operators(module: ModuleType) -> None:
    """Have the installed package's functions call the operators that it wraps in operators of its own."""
    from sandtable.vgpu.packages.flash_attn_3 import operators

    for name in ("_flash_attn_forward", "_flash_attn_backward"):
        if hasattr(module, name):
            setattr(module, name, getattr(operators, name))
