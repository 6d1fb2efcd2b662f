"""The catalogue: `devices/<id>.toml` and `machines/<name>.toml`, and the way from such a file to a Cluster.

One file an entry, so that adding a machine is adding a file. The files are package data; nothing is read on import.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from sandtable.cluster.cluster import Cluster, Node
from sandtable.cluster.device import Device, Rates
from sandtable.cluster.files import check, did_you_mean, read
from sandtable.cluster.schema import DeviceFile, MachineFile, Peak
from sandtable.errors import ClusterError
from sandtable.units import GB, TERA

__all__ = ["device_names", "load", "load_device", "names"]


def load(name: str | Path, *, nodes: int | None = None) -> Cluster:
    """The cluster of `nodes` machines called `name` in the catalogue, or described by the file `name` (ends in .toml).

    A user's own file may say with `num_nodes` how many there are: as many without `nodes`, and never more. Machines of
    the catalogue can be had in any number, 1 without `nodes`.
    """
    if str(name).endswith(".toml"):
        file: Path | Traversable = Path(name)
        name = Path(name).stem
    else:
        name = str(name)
        file = _entry("machines", name, what="cluster", hint="or give the path of a .toml file")
    data = read(file)
    inline = data.get("device")
    if isinstance(inline, dict):
        data["device"] = f"{name}.device"
    machine = check(data, MachineFile, file=file)
    if isinstance(inline, dict):
        device = _device(machine.device, check(inline, DeviceFile, file=file, within="device"))
    else:
        device = _named_device(machine.device, file)
    num_nodes = nodes if nodes is not None else machine.num_nodes or 1
    if num_nodes < 1:
        raise ClusterError(f"number of nodes ({num_nodes}) must be at least 1; try --nnodes 1")
    if machine.num_nodes is not None and num_nodes > machine.num_nodes:
        raise ClusterError(
            f"number of nodes ({num_nodes}) must be at most the {machine.num_nodes} that {file} says there are; "
            f"try --nnodes {machine.num_nodes}, or raise num_nodes in the file"
        )
    node = Node(num_gpus=machine.gpus_per_node, device=device)
    return Cluster(name=name, title=machine.title, node=node, num_nodes=num_nodes)


def load_device(name: str) -> Device:
    """The device called `name` in the catalogue, such as "a100-sxm4-80gb"."""
    file = _entry("devices", name, what="device", hint="or describe it in a [device] table of a machine file")
    return _device(name, check(read(file), DeviceFile, file=file))


def names() -> tuple[str, ...]:
    """The clusters that `load` knows by name, in alphabetical order."""
    return _list("machines")


def device_names() -> tuple[str, ...]:
    """The devices that `load_device` knows, in alphabetical order."""
    return _list("devices")


def _list(shelf: str) -> tuple[str, ...]:
    entries = (entry.name for entry in (files(__name__) / shelf).iterdir())
    return tuple(sorted(entry.removesuffix(".toml") for entry in entries if entry.endswith(".toml")))


def _entry(shelf: str, name: str, *, what: str, hint: str) -> Traversable:
    known = _list(shelf)
    if name not in known:
        near = did_you_mean(name, known)
        raise ClusterError(f"unknown {what} '{name}'{near}; it must be one of {', '.join(known)}, {hint}")
    return files(__name__) / shelf / f"{name}.toml"


def _named_device(name: str, file: Path | Traversable) -> Device:
    try:
        return load_device(name)
    except ClusterError as error:
        raise ClusterError(f"{file}: device: {error}") from None


def _device(name: str, file: DeviceFile) -> Device:
    made = file.properties
    return Device(
        id=name,
        name=file.name,
        vendor=file.vendor,
        architecture=made.architecture,
        capability=(made.capability[0], made.capability[1]),
        num_sms=made.num_sms,
        warp_size=made.warp_size,
        max_threads_per_sm=made.max_threads_per_sm,
        registers_per_sm=made.registers_per_sm,
        shared_memory_per_block_bytes=made.shared_memory_per_block_bytes,
        shared_memory_per_block_optin_bytes=made.shared_memory_per_block_optin_bytes,
        shared_memory_per_sm_bytes=made.shared_memory_per_sm_bytes,
        l2_bytes=made.l2_bytes,
        memory_bytes=file.memory.size_bytes,
        memory_is_measured=file.memory.status == "measured",
        memory_bandwidth_bytes_per_s=round(file.bandwidth.memory_gb_per_s * GB),
        matmul=_rates(file.matmul),
        vector=_rates(file.vector),
        measured_matmul=_rates(file.measured_matmul),
    )


def _rates(peak: Peak | None) -> Rates:
    if peak is None:
        return Rates()
    return Rates(
        float32=round(peak.float32_tflops * TERA),
        tf32=round(peak.tf32_tflops * TERA),
        float16=round(peak.float16_tflops * TERA),
        bfloat16=round(peak.bfloat16_tflops * TERA),
        float8=round(peak.float8_tflops * TERA),
        int8=round(peak.int8_tops * TERA),
    )
