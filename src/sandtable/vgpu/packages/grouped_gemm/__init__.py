"""grouped_gemm: products of groups of rows with a matrix each, for mixtures of experts, and their permutations."""

from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    functions = names_of("grouped_gemm.functions")
    return Package(
        name="grouped_gemm",
        version="1.1.4",
        compiled={"grouped_gemm_backend": names_of("grouped_gemm.compiled")},
        missing={"grouped_gemm": _fill, "grouped_gemm.ops": functions, "grouped_gemm.backend": functions},
    )


def _fill(module: object) -> None:
    import importlib

    module.ops = importlib.import_module("grouped_gemm.ops")  # type: ignore[attr-defined]
