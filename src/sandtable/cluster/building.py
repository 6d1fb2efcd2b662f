"""Build the dataclasses that other rooms see from checked files: units become bytes, nanoseconds and shares."""

from collections.abc import Sequence

from sandtable.cluster.device import Device, Origin
from sandtable.cluster.device_schema import SourcedTable
from sandtable.cluster.fabric import Fabric, Site, SwitchTier
from sandtable.cluster.machine_schema import (
    FabricTable,
    NicsTable,
    NodeFile,
    NodeHostTable,
    PriceTable,
    ScaleUpTable,
    SiteTable,
    SwitchTable,
)
from sandtable.cluster.node import Host, Nics, NodeKind, Price, ScaleUp
from sandtable.units import GB, GBIT_BYTES, NS_PER_MS, NS_PER_US

__all__ = ["build_fabric", "build_nics", "build_node", "fit_adapters"]

# A file without links gets these: a plain server, shown as nominal everywhere.
_ASSUMED = "assumed: not in the file"
DEFAULT_SCALE_UP = ScaleUpTable(
    kind="pcie", gb_per_s=31.5, latency_us=3.0, efficiency=0.76, source=f"{_ASSUMED}; PCIe 4.0 x16", status="nominal"
)
DEFAULT_NICS = NicsTable(
    count=1,
    gbit_per_s=25,
    latency_us=20.0,
    efficiency=0.8,
    transport="tcp",
    source=f"{_ASSUMED}; 25 Gbit/s Ethernet",
    status="nominal",
)
DEFAULT_PCIE_GB_PER_S = 31.5
DEFAULT_FABRIC = FabricTable(source=f"{_ASSUMED}; one switch that is never full", status="nominal")


def build_node(name: str, file: NodeFile, device: Device, *, nics: NicsTable | None = None) -> NodeKind:
    """Build the kind of node in `file`, with `nics` in place of its own if given."""
    scale_up = file.scale_up or DEFAULT_SCALE_UP
    return NodeKind(
        name=name,
        title=file.title,
        num_gpus=file.gpus_per_node,
        device=device,
        scale_up=_scale_up(scale_up),
        host=_host(file.host or _default_host(scale_up), num_gpus=file.gpus_per_node),
        nics=build_nics(nics or file.nics or DEFAULT_NICS, num_gpus=file.gpus_per_node),
        price=_price(file.price),
        origin=_origin(file),
    )


def build_nics(table: NicsTable, *, num_gpus: int) -> Nics:
    spread = [gpu * table.count // num_gpus for gpu in range(num_gpus)]
    return Nics(
        count=table.count,
        bandwidth_bytes_per_s=table.gbit_per_s * GBIT_BYTES,
        latency_ns=round(table.latency_us * NS_PER_US),
        efficiency=table.efficiency,
        ring_efficiency=table.ring_efficiency,
        transport=table.transport,
        of_gpu=tuple(table.gpu_to_nic or spread),
        origin=_origin(table),
    )


def fit_adapters(table: NicsTable, num_gpus: int) -> NicsTable:
    """Return a network's adapters for a node: no more adapters than GPUs."""
    return table if table.count <= num_gpus else table.model_copy(update={"count": num_gpus})


def build_fabric(table: FabricTable | None) -> Fabric:
    table = table or DEFAULT_FABRIC
    return Fabric(
        tiers=tuple(_tier(tier) for tier in table.tiers),
        rails=table.rails,
        sites=_sites(table, table.sites),
        origin=_origin(table),
    )


def _scale_up(table: ScaleUpTable) -> ScaleUp:
    return ScaleUp(
        kind=table.kind,
        bandwidth_bytes_per_s=table.gb_per_s * GB,
        latency_ns=round(table.latency_us * NS_PER_US),
        efficiency=table.efficiency,
        nvls=table.nvls,
        mesh=tuple(tuple(row) for row in table.mesh or ()),
        origin=_origin(table),
    )


def _default_host(scale_up: ScaleUpTable) -> NodeHostTable:
    pcie = DEFAULT_PCIE_GB_PER_S if scale_up.kind in ("nvswitch", "nvlink") else scale_up.gb_per_s
    return NodeHostTable(
        pcie_gb_per_s=pcie, source=f"{_ASSUMED}; PCIe 4.0 x16, or the rate of scale_up", status="nominal"
    )


def _host(table: NodeHostTable, *, num_gpus: int) -> Host:
    """Build the host. A root without a rate carries what all GPUs can send at once: only their own ports count."""
    return Host(
        pcie_bytes_per_s=table.pcie_gb_per_s * GB,
        root_bytes_per_s=(table.root_gb_per_s or table.pcie_gb_per_s * num_gpus) * GB,
        efficiency=table.efficiency,
        num_cores=table.cores or 0,
        issue_scale=table.issue_scale,
        memory_bytes_per_s=table.memory_gb_per_s * GB,
        disk_read_bytes_per_s=table.disk_read_gb_per_s * GB,
        disk_write_bytes_per_s=table.disk_write_gb_per_s * GB,
        origin=_origin(table),
    )


def _price(table: PriceTable | None) -> Price | None:
    return Price(usd_per_node_hour=table.usd_per_node_hour, origin=_origin(table)) if table else None


def _tier(table: SwitchTable) -> SwitchTier:
    return SwitchTier(
        below=table.below or 0,
        oversubscription=table.oversubscription or 1.0,
        uplink_bytes_per_s=(table.uplink_gbit_per_s or 0.0) * GBIT_BYTES,
        latency_ns=round(table.latency_us * NS_PER_US),
        efficiency=table.efficiency,
        origin=_origin(table),
    )


def _sites(table: FabricTable, sites: Sequence[SiteTable]) -> tuple[Site, ...]:
    joint = table.between_sites
    if joint is None:
        return ()
    return tuple(
        Site(
            name=site.name,
            num_nodes=site.num_nodes,
            bandwidth_bytes_per_s=(site.gbit_per_s or joint.gbit_per_s) * GBIT_BYTES,
            latency_ns=round(joint.latency_ms * NS_PER_MS),
            efficiency=joint.efficiency,
            origin=_origin(joint),
        )
        for site in sites
    )


def _origin(table: SourcedTable) -> Origin:
    return Origin(source=table.source, status=table.status)
