"""DeepEP: tokens travel to the ranks of their experts and back, for mixtures of experts."""

from sandtable.vgpu.packages.package import Package, names_of
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    buffer, events = names_of("deep_ep.buffer", "deep_ep.events"), names_of("deep_ep.events")
    return Package(
        name="deep_ep",
        version="1.2.1",
        missing={"deep_ep": buffer, "deep_ep.buffer": buffer, "deep_ep.utils": events},
    )
