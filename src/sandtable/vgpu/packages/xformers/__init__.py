"""xformers: memory-efficient attention by masks, a gated layer, RMS norm.

If xformers is installed, its Python code runs; its library of C++ kernels, which hardly loads without CUDA, counts as
loaded. The attention operators that it registers with torch have shapes of their own.
"""

from types import ModuleType

from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    fmha = names_of("xformers.attention")
    return Package(
        name="xformers",
        version="0.0.35",
        adaptations={"xformers._cpp_lib": _count_as_built},
        missing={
            "xformers": names_of(),
            "xformers.ops": _fill_operators,
            "xformers.ops.fmha": fmha,
            "xformers.ops.fmha.attn_bias": names_of("xformers.attn_bias"),
            "xformers.ops.rmsnorm": names_of("xformers.layers"),
            "xformers.ops.swiglu_op": names_of("xformers.layers"),
            "xformers.profiler": names_of("xformers.profiler"),
        },
    )


def _fill_operators(module: ModuleType) -> None:
    """Fill `xformers.ops`, whose attention is also a module below it."""
    import importlib

    names_of("xformers.attention", "xformers.layers")(module)
    module.fmha = importlib.import_module("xformers.ops.fmha")  # type: ignore[attr-defined]
    importlib.import_module("xformers.ops.fmha.attn_bias")


def _count_as_built(module: ModuleType) -> None:
    module._cpp_library_load_exception = None  # type: ignore[attr-defined]
    module._built_with_cuda = True  # type: ignore[attr-defined]
