"""causal_conv1d: short convolutions along a sequence, channel by channel, limited by memory."""

from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    functions = names_of("causal_conv1d.functions")
    return Package(
        name="causal_conv1d",
        version="1.6.0",
        compiled={"causal_conv1d_cuda": names_of("causal_conv1d.compiled")},
        missing={"causal_conv1d": functions, "causal_conv1d.causal_conv1d_interface": functions},
    )
