"""The catalogue: `devices/`, `machines/` and `networks/<name>.toml`, and the way from such a file to a Cluster.

One file an entry, so that adding a machine is adding a file. The files are package data; nothing is read on import.
"""

from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from sandtable.cluster.assembly import assemble, take
from sandtable.cluster.building import build_fabric, build_nics, build_node, fitting
from sandtable.cluster.cluster import Cluster, NodeGroup
from sandtable.cluster.device import Device, Rates
from sandtable.cluster.files import File, check, did_you_mean, read
from sandtable.cluster.generations import efficiency_of
from sandtable.cluster.machine_schema import (
    GroupedFile,
    GroupTable,
    MachineFile,
    NetworkFile,
    NicsTable,
    NodeFile,
    check_adapters,
)
from sandtable.cluster.node import Nics, NodeKind
from sandtable.cluster.schema import DeviceFile, Peak
from sandtable.errors import ClusterError
from sandtable.units import GB, TERA

__all__ = ["device_names", "load", "load_device", "names", "network_names"]


def load(name: str | Path, *, nodes: int | None = None) -> Cluster:
    """The cluster of `nodes` machines called `name` in the catalogue, or described by the file `name` (ends in .toml).

    `rtx4090+25gbe` is the machine `rtx4090` with the network `25gbe` in place of its own. A file may say how many nodes
    there are: as many without `nodes`, and never more. Others can be had in any number, 1 without `nodes`.
    """
    base, network = _split(str(name))
    file = _machine_file(base)
    data = read(file)
    if "groups" in data:
        if network:
            raise ClusterError(
                f"{file}: groups must be left out for '{name}', but are given; say in each group's machine"
            )
        cluster = _unequal(_stem(name), data, file)
    else:
        cluster = _equal(_stem(name), data, file, network=network, nodes=nodes)
    return take(cluster, nodes, file=file) if nodes is not None else cluster


def load_device(name: str) -> Device:
    """The device called `name` in the catalogue, such as "a100-sxm4-80gb"."""
    file = _entry("devices", name, what="device", hint="or describe it in a [device] table of a machine file")
    return _device(name, check(read(file), DeviceFile, file=file))


def names() -> tuple[str, ...]:
    """The machines that `load` knows by name, in alphabetical order."""
    return _list("machines")


def network_names() -> tuple[str, ...]:
    """The networks that can follow a machine's name after `+`, in alphabetical order."""
    return _list("networks")


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


def _machine_file(name: str, *, beside: Path | Traversable | None = None) -> Path | Traversable:
    """The file of a machine by name, or by path, from the directory of the file `beside` that names it."""
    if name.endswith(".toml"):
        return beside.parent / name if isinstance(beside, Path) else Path(name)
    return _entry("machines", name, what="cluster", hint="or give the path of a .toml file")


def _split(name: str) -> tuple[str, str]:
    """The machine and the network of `rtx4090+25gbe`; a path that ends in .toml is a machine whole."""
    base, plus, network = name.rpartition("+")
    return (base, network) if plus and not name.endswith(".toml") else (name, "")


def _stem(name: str | Path) -> str:
    return Path(name).stem if str(name).endswith(".toml") else str(name).replace(".toml+", "+").rpartition("/")[2]


def _equal(name: str, data: dict[str, Any], file: File, *, network: str, nodes: int | None) -> Cluster:
    inline = data.get("device")
    machine = check(_without_table(data, "device", name), MachineFile, file=file)
    device = _device_of(machine.device, inline, file)
    other = _network(network) if network else None
    fabric = build_fabric(other.fabric if other else machine.fabric)
    title = f"{machine.title}, {other.title}" if other else machine.title
    kind = build_node(name, machine, device, nics=fitting(other.nics, machine.gpus_per_node) if other else None)
    sited = sum(site.num_nodes for site in fabric.sites)
    num_nodes = machine.num_nodes or sited or max(nodes or 1, 1)
    return assemble(
        Cluster(
            name=name,
            title=title,
            groups=(NodeGroup(kind=kind, num_nodes=num_nodes),),
            fabric=fabric,
            placement=machine.placement,
        ),
        file=file,
    )


def _unequal(name: str, data: dict[str, Any], file: File) -> Cluster:
    tables = data["groups"] if isinstance(data["groups"], list) else []
    inline = [table.get("machine") if isinstance(table, dict) else None for table in tables]
    if tables:
        plain = [
            _without_table(table, "machine", f"{name}.{index}") if isinstance(table, dict) else table
            for index, table in enumerate(tables)
        ]
        data = {**data, "groups": plain}
    checked = check(data, GroupedFile, file=file)
    groups = []
    devices: dict[Device, Device] = {}
    for index, (table, machine) in enumerate(zip(checked.groups, inline, strict=True)):
        within = f"groups.{index}"
        kind = _group_kind(table, machine, file, within=within)
        # Devices described twice in the same words are one device: only their links differ.
        device = devices.setdefault(replace(kind.device, id=""), kind.device)
        groups.append(NodeGroup(kind=replace(kind, device=device), num_nodes=table.num_nodes))
    fabric = build_fabric(checked.fabric)
    made = Cluster(name=name, title=checked.title, groups=tuple(groups), fabric=fabric, placement=checked.placement)
    return assemble(made, file=file)


def _group_kind(table: GroupTable, inline: object, file: File, *, within: str) -> NodeKind:
    """The kind of node of one group: described in place, or by the name of a machine."""
    if isinstance(inline, dict):
        key = f"{within}.machine"
        machine = check(_without_table(inline, "device", table.machine), NodeFile, file=file, within=key)
        device = _device_of(machine.device, inline.get("device"), file, within=f"{key}.device")
        if table.nics:
            _group_nics(table.nics, machine.gpus_per_node, file, within)
        return build_node(table.machine, machine, device, nics=table.nics)
    try:
        base, network = _split(table.machine)
        source = _machine_file(base, beside=file if isinstance(file, Path) else None)
        data = read(source)
        if "groups" in data:
            raise ClusterError(f"'{table.machine}' must be one kind of node, but has groups itself; name its machines")
        kind = _equal(_stem(table.machine), data, source, network=network, nodes=1).groups[0].kind
    except ClusterError as error:
        raise ClusterError(f"{file}: {within}.machine: {error}") from None
    return replace(kind, nics=_group_nics(table.nics, kind.num_gpus, file, within)) if table.nics else kind


def _group_nics(table: NicsTable, num_gpus: int, file: File, within: str) -> Nics:
    try:
        check_adapters(table, num_gpus)
    except PydanticCustomError as error:
        raise ClusterError(f"{file}: {within}.{(error.context or {})['key']} {error.message()}") from None
    return build_nics(table, num_gpus=num_gpus)


def _network(name: str) -> NetworkFile:
    file = _entry("networks", name, what="network", hint="or describe it in a table [nics] of a machine file")
    return check(read(file), NetworkFile, file=file)


def _without_table(data: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    """`data` with the table at `key`, which is checked by itself, replaced by a name for what it describes."""
    return {**data, key: f"{name}.{key}"} if isinstance(data.get(key), dict) else data


def _device_of(name: str, inline: object, file: File, *, within: str = "device") -> Device:
    if isinstance(inline, dict):
        return _device(name, check(inline, DeviceFile, file=file, within=within))
    try:
        return load_device(name)
    except ClusterError as error:
        raise ClusterError(f"{file}: {within}: {error}") from None


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
        efficiency=efficiency_of(file),
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
