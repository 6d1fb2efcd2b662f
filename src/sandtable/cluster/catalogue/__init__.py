"""The catalogue: `devices/`, `machines/` and `networks/<name>.toml`, and how such a file becomes a Cluster.

One file per entry: to add a machine, add a file. The files are package data; nothing is read on import.
"""

from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from sandtable.cluster.building import build_fabric, build_nics, build_node, fit_adapters
from sandtable.cluster.cluster import Cluster, NodeGroup
from sandtable.cluster.device import Device, Rates
from sandtable.cluster.device_schema import DeviceFile, PeakTable
from sandtable.cluster.generations import efficiency_of
from sandtable.cluster.machine_schema import (
    GroupedFile,
    MachineFile,
    NetworkFile,
    NicsTable,
    NodeFile,
    NodeGroupTable,
    check_adapters,
)
from sandtable.cluster.node import Nics, NodeKind
from sandtable.errors import ClusterError
from sandtable.toml_tables import TomlFile, check_table, did_you_mean, load_table, read_toml
from sandtable.units import GB, TERA

__all__ = ["device_names", "load", "load_device", "names", "network_names"]


def load(name: str | Path, *, nodes: int | None = None) -> Cluster:
    """Load the cluster called `name` in the catalogue, or described by the file `name` (ends in .toml).

    `rtx4090+25gbe` is the machine `rtx4090` with the network `25gbe` instead of its own. A file may give the number of
    nodes there are; `nodes` takes the first ones, and never more. Otherwise any number is possible, 1 by default.
    """
    base, network = _split(str(name))
    file = _machine_file(base)
    data = read_toml(file, error=ClusterError)
    if "groups" in data:
        if network:
            raise ClusterError(
                f"{file}: a file with groups must not be combined with a network, but got '{name}'; "
                "name the network in each machine"
            )
        cluster = _grouped_cluster(_stem(name), data, file)
    else:
        cluster = _uniform_cluster(_stem(name), data, file, network=network, nodes=nodes)
    return cluster if nodes is None else cluster.with_nodes(nodes)


def load_device(name: str) -> Device:
    """Load the device called `name` in the catalogue, such as "a100-sxm4-80gb"."""
    file = _entry("devices", name, what="device", hint="or describe it in a [device] table of a machine file")
    return _device(name, load_table(file, DeviceFile, error=ClusterError))


def names() -> tuple[str, ...]:
    """Return the machines that `load` knows by name, in alphabetical order."""
    return _list("machines")


def network_names() -> tuple[str, ...]:
    """Return the networks that may follow a machine's name after `+`, in alphabetical order."""
    return _list("networks")


def device_names() -> tuple[str, ...]:
    """Return the devices that `load_device` knows, in alphabetical order."""
    return _list("devices")


def _list(directory: str) -> tuple[str, ...]:
    entries = (entry.name for entry in (files(__name__) / directory).iterdir())
    return tuple(sorted(entry.removesuffix(".toml") for entry in entries if entry.endswith(".toml")))


def _entry(directory: str, name: str, *, what: str, hint: str) -> Traversable:
    known = _list(directory)
    if name not in known:
        near = did_you_mean(name, known)
        raise ClusterError(f"unknown {what} '{name}'{near}; it must be one of {', '.join(known)}, {hint}")
    return files(__name__) / directory / f"{name}.toml"


def _machine_file(name: str, *, beside: TomlFile | None = None) -> TomlFile:
    """Return the file of a machine by name, or by path, relative to the file `beside` that names it."""
    if name.endswith(".toml"):
        return beside.parent / name if isinstance(beside, Path) else Path(name)
    return _entry("machines", name, what="cluster", hint="or give the path of a .toml file")


def _user_file(file: TomlFile) -> Path | None:
    """Return `file` if it belongs to the user, None for an entry of the catalogue."""
    is_entry = file in (files(__name__) / "machines").iterdir()
    return None if is_entry or not isinstance(file, Path) else file


def _split(name: str) -> tuple[str, str]:
    """Split `rtx4090+25gbe` into machine and network; a path that ends in .toml is all machine."""
    base, plus, network = name.rpartition("+")
    return (base, network) if plus and not name.endswith(".toml") else (name, "")


def _stem(name: str | Path) -> str:
    return Path(name).stem if str(name).endswith(".toml") else str(name).replace(".toml+", "+").rpartition("/")[2]


def _uniform_cluster(name: str, data: dict[str, Any], file: TomlFile, *, network: str, nodes: int | None) -> Cluster:
    inline = data.get("device")
    machine = check_table(_without_table(data, "device", name), MachineFile, file=file, error=ClusterError)
    device = _device_of(machine.device, inline, file)
    other = _network(network) if network else None
    fabric = build_fabric(other.fabric if other else machine.fabric)
    title = f"{machine.title}, {other.title}" if other else machine.title
    kind = build_node(name, machine, device, nics=fit_adapters(other.nics, machine.gpus_per_node) if other else None)
    sited = sum(site.num_nodes for site in fabric.sites)
    available = machine.num_nodes or sited
    return Cluster(
        name=name,
        title=title,
        groups=(NodeGroup(kind=kind, num_nodes=available or max(nodes or 1, 1)),),
        fabric=fabric,
        placement=machine.placement,
        available_nodes=available,
        source_file=None if network else _user_file(file),
    )


def _grouped_cluster(name: str, data: dict[str, Any], file: TomlFile) -> Cluster:
    tables = data["groups"] if isinstance(data["groups"], list) else []
    inline = [table.get("machine") if isinstance(table, dict) else None for table in tables]
    if tables:
        plain = [
            _without_table(table, "machine", f"{name}.{index}") if isinstance(table, dict) else table
            for index, table in enumerate(tables)
        ]
        data = {**data, "groups": plain}
    checked = check_table(data, GroupedFile, file=file, error=ClusterError)
    groups = []
    devices: dict[Device, Device] = {}
    for index, (table, machine) in enumerate(zip(checked.groups, inline, strict=True)):
        within = f"groups.{index}"
        kind = _group_kind(table, machine, file, within=within)
        # Devices with equal descriptions are one device: only their links differ.
        device = devices.setdefault(replace(kind.device, id=""), kind.device)
        groups.append(NodeGroup(kind=replace(kind, device=device), num_nodes=table.num_nodes))
    fabric = build_fabric(checked.fabric)
    return Cluster(
        name=name,
        title=checked.title,
        groups=tuple(groups),
        fabric=fabric,
        placement=checked.placement,
        available_nodes=sum(group.num_nodes for group in groups),
        source_file=_user_file(file),
    )


def _group_kind(table: NodeGroupTable, inline: object, file: TomlFile, *, within: str) -> NodeKind:
    """Return the kind of node of one group: described in place, or by the name of a machine."""
    if isinstance(inline, dict):
        key = f"{within}.machine"
        machine = check_table(
            _without_table(inline, "device", table.machine), NodeFile, file=file, error=ClusterError, within=key
        )
        device = _device_of(machine.device, inline.get("device"), file, within=f"{key}.device")
        if table.nics:
            _group_nics(table.nics, machine.gpus_per_node, file, within)
        return build_node(table.machine, machine, device, nics=table.nics)
    try:
        base, network = _split(table.machine)
        source = _machine_file(base, beside=file if isinstance(file, Path) else None)
        data = read_toml(source, error=ClusterError)
        if "groups" in data:
            raise ClusterError(f"'{table.machine}' must be one kind of node, but has groups itself; name its machines")
        kind = _uniform_cluster(_stem(table.machine), data, source, network=network, nodes=1).groups[0].kind
    except ClusterError as error:
        raise ClusterError(f"{file}: {within}.machine: {error}") from None
    return replace(kind, nics=_group_nics(table.nics, kind.num_gpus, file, within)) if table.nics else kind


def _group_nics(table: NicsTable, num_gpus: int, file: TomlFile, within: str) -> Nics:
    try:
        check_adapters(table, num_gpus)
    except PydanticCustomError as error:
        raise ClusterError(f"{file}: {within}.{(error.context or {})['key']} {error.message()}") from None
    return build_nics(table, num_gpus=num_gpus)


def _network(name: str) -> NetworkFile:
    file = _entry("networks", name, what="network", hint="or describe it in a table [nics] of a machine file")
    return load_table(file, NetworkFile, error=ClusterError)


def _without_table(data: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    """Return `data` with the table at `key`, which is checked separately, replaced by a name for what it describes."""
    return {**data, key: f"{name}.{key}"} if isinstance(data.get(key), dict) else data


def _device_of(name: str, inline: object, file: TomlFile, *, within: str = "device") -> Device:
    if isinstance(inline, dict):
        return _device(name, check_table(inline, DeviceFile, file=file, error=ClusterError, within=within))
    try:
        return load_device(name)
    except ClusterError as error:
        raise ClusterError(f"{file}: {within}: {error}") from None


def _device(name: str, file: DeviceFile) -> Device:
    properties = file.properties
    return Device(
        id=name,
        name=file.name,
        vendor=file.vendor,
        architecture=properties.architecture,
        capability=(properties.capability[0], properties.capability[1]),
        num_sms=properties.num_sms,
        warp_size=properties.warp_size,
        max_threads_per_sm=properties.max_threads_per_sm,
        registers_per_sm=properties.registers_per_sm,
        shared_memory_per_block_bytes=properties.shared_memory_per_block_bytes,
        shared_memory_per_block_optin_bytes=properties.shared_memory_per_block_optin_bytes,
        shared_memory_per_sm_bytes=properties.shared_memory_per_sm_bytes,
        l2_bytes=properties.l2_bytes,
        memory_bytes=file.memory.size_bytes,
        memory_is_measured=file.memory.status == "measured",
        memory_bandwidth_bytes_per_s=round(file.bandwidth.memory_gb_per_s * GB),
        matmul=_rates(file.matmul),
        vector=_rates(file.vector),
        measured_matmul=_rates(file.measured_matmul),
        efficiency=efficiency_of(file),
    )


def _rates(peak: PeakTable | None) -> Rates:
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
