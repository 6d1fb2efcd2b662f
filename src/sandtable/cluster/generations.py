"""Build an Efficiency from a device file, and from its generation's file for the tables it leaves out.

Chips of one generation run the same kernels, so they share a file.
"""

from importlib.resources import files
from typing import Any

from sandtable.cluster.device import (
    AttentionEfficiency,
    AttentionKernel,
    AttentionPass,
    ConvolutionEfficiency,
    Efficiency,
    GemmEfficiency,
    HostEfficiency,
    StreamingEfficiency,
)
from sandtable.cluster.device_schema import (
    AttentionKernelTable,
    AttentionTable,
    DeviceFile,
    GenerationFile,
    SourcedTable,
)
from sandtable.errors import ClusterError
from sandtable.toml_tables import did_you_mean, load_table
from sandtable.units import GB, NS_PER_US

__all__ = ["efficiency_of", "generation_names"]


def efficiency_of(file: DeviceFile) -> Efficiency:
    """Return the device's own tables, and its generation's for those it leaves out."""
    generation = file.generation or ("cpu" if file.vendor == "cpu" else "generic")
    shared = _load(generation)
    return Efficiency(
        generation=generation,
        gemm=GemmEfficiency(**_numbers(file.gemm or shared.gemm)),
        attention=_attention(file.attention or shared.attention),
        convolution=ConvolutionEfficiency(**_numbers(file.convolution or shared.convolution)),
        streaming=StreamingEfficiency(**_numbers(file.streaming or shared.streaming)),
        host=HostEfficiency(**_numbers(file.host or shared.host)),
    )


def generation_names() -> tuple[str, ...]:
    """Return the generations that a device file may name, in alphabetical order."""
    entries = (entry.name for entry in _directory().iterdir())
    return tuple(sorted(entry.removesuffix(".toml") for entry in entries if entry.endswith(".toml")))


def _directory() -> Any:
    return files("sandtable.cluster.catalogue") / "generations"


def _load(name: str) -> GenerationFile:
    known = generation_names()
    if name not in known:
        near = did_you_mean(name, known)
        raise ClusterError(
            f"unknown generation '{name}'{near}; it must be one of {', '.join(known)}, or leave it out and give the "
            f"device its own tables {', '.join(GenerationFile.model_fields)}"
        )
    file = _directory() / f"{name}.toml"
    return load_table(file, GenerationFile, error=ClusterError)


def _attention(table: AttentionTable) -> AttentionEfficiency:
    return AttentionEfficiency(
        flash=_kernel(table.flash),
        flash3=_kernel(table.flash3 or table.flash),
        efficient=_kernel(table.efficient),
        cudnn=_kernel(table.cudnn),
        burst_gain=table.burst_gain,
        source=table.source,
        status=table.status,
    )


def _kernel(table: AttentionKernelTable) -> AttentionKernel:
    return AttentionKernel(
        forward=AttentionPass(**table.forward.model_dump()), backward=AttentionPass(**table.backward.model_dump())
    )


def _numbers(table: SourcedTable) -> dict[str, Any]:
    """Return the table with times in ns and rates in bytes/s, under the names of the dataclasses."""
    converted: dict[str, Any] = {}
    for key, value in table.model_dump().items():
        if key.endswith("_us"):
            converted[key.removesuffix("_us") + "_ns"] = value * NS_PER_US
        elif key.endswith("_gb_per_s"):
            converted[key.removesuffix("_gb_per_s") + "_bytes_per_s"] = value * GB
        else:
            converted[key] = value
    return converted
