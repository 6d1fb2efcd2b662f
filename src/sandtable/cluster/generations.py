"""From the tables of a device file, and of its generation's file for those it does not have, to an Efficiency.

Chips of one generation run the same kernels, so what was learnt on one of them stands in a file they share.
"""

from importlib.resources import files
from typing import Any

from sandtable.cluster.efficiency import Attention, Convolution, Efficiency, Gemm, Host, Streaming
from sandtable.cluster.efficiency_schema import GenerationFile
from sandtable.cluster.files import check, did_you_mean, read
from sandtable.cluster.schema import DeviceFile
from sandtable.cluster.tables import Facts
from sandtable.errors import ClusterError
from sandtable.units import GB, NS_PER_US

__all__ = ["efficiency_of", "generation_names"]


def efficiency_of(file: DeviceFile) -> Efficiency:
    """The device's own tables, and its generation's in the place of those it leaves out."""
    generation = file.generation or ("cpu" if file.vendor == "cpu" else "generic")
    shared = _load(generation)
    return Efficiency(
        generation=generation,
        gemm=Gemm(**_numbers(file.gemm or shared.gemm)),
        attention=Attention(**_numbers(file.attention or shared.attention)),
        convolution=Convolution(**_numbers(file.convolution or shared.convolution)),
        streaming=Streaming(**_numbers(file.streaming or shared.streaming)),
        host=Host(**_numbers(file.host or shared.host)),
    )


def generation_names() -> tuple[str, ...]:
    """The generations a device file may name, in alphabetical order."""
    entries = (entry.name for entry in _shelf().iterdir())
    return tuple(sorted(entry.removesuffix(".toml") for entry in entries if entry.endswith(".toml")))


def _shelf() -> Any:
    return files("sandtable.cluster.catalogue") / "generations"


def _load(name: str) -> GenerationFile:
    known = generation_names()
    if name not in known:
        near = did_you_mean(name, known)
        raise ClusterError(
            f"unknown generation '{name}'{near}; it must be one of {', '.join(known)}, or leave it out and give the "
            f"device its own tables {', '.join(GenerationFile.model_fields)}"
        )
    file = _shelf() / f"{name}.toml"
    return check(read(file), GenerationFile, file=file)


def _numbers(table: Facts) -> dict[str, Any]:
    """The table with times in ns and rates in bytes/s, under the names that the dataclasses have."""
    converted: dict[str, Any] = {}
    for key, value in table.model_dump().items():
        if key.endswith("_us"):
            converted[key.removesuffix("_us") + "_ns"] = value * NS_PER_US
        elif key.endswith("_gb_per_s"):
            converted[key.removesuffix("_gb_per_s") + "_bytes_per_s"] = value * GB
        else:
            converted[key] = value
    return converted
