"""The schema of machine files: the node's links, its adapters and price, the switches above it, and unequal nodes.

Bandwidths are per direction. `efficiency` is the share of the nominal bandwidth that large transfers reach; where it
was measured the table's status is `measured`, and its source names the nominal number it refers to.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from sandtable.cluster.device_schema import SourcedTable
from sandtable.toml_tables import Count, Rate, Share, Speed, Text, TomlTable, broken_rule

__all__ = [
    "BetweenSites",
    "FabricTable",
    "GroupedFile",
    "MachineFile",
    "NetworkFile",
    "NicsTable",
    "NodeFile",
    "NodeGroupTable",
    "NodeHostTable",
    "PriceTable",
    "ScaleUpTable",
    "SiteTable",
    "SwitchTable",
    "check_adapters",
]

Nodes = Annotated[int, Field(ge=1, le=1_000_000)]
Gpus = Annotated[int, Field(ge=1, le=1024)]
Index = Annotated[int, Field(ge=0)]


def _placement(value: object) -> str | tuple[int, ...]:
    """Return one of the two words, or a list of node numbers as a tuple."""
    if value in ("node-major", "round-robin"):
        return str(value)
    if isinstance(value, list) and value and all(type(node) is int for node in value):
        return tuple(value)
    remedy = "choose: node after node, one to each node in turn, or the nodes in order"
    raise broken_rule("", '"node-major", "round-robin" or a list of node numbers', value, remedy)


Placement = Annotated[str | tuple[int, ...], PlainValidator(_placement)]


class ScaleUpTable(SourcedTable):
    """`[scale_up]`: how the GPUs of one node reach each other."""

    kind: Literal["nvswitch", "nvlink", "pcie", "host"] = Field(
        description='"nvswitch" (all pairs at full rate), "nvlink" (a mesh; xGMI too), "pcie" or "host" (by memory)'
    )
    gb_per_s: Speed = Field(description="GB/s (10^9 bytes) of one GPU's port in each direction, such as 300")
    latency_us: Rate = Field(description="microseconds from one GPU of the node to another, such as 1.5")
    efficiency: Share = Field(default=0.8, description="the share of gb_per_s that large transfers reach, such as 0.8")
    nvls: bool = Field(default=False, description="whether the NVSwitch can reduce and multicast (NVLink SHARP)")
    mesh: list[list[Index]] | None = Field(
        default=None, description='the number of links between each pair of GPUs, one row per GPU, for kind = "nvlink"'
    )

    @model_validator(mode="after")
    def _mesh_goes_both_ways(self) -> Self:
        mesh = self.mesh or []
        if mesh and self.kind != "nvlink":
            raise broken_rule("mesh", 'left out unless kind is "nvlink"', "a table", "leave it out, or correct kind")
        for gpu, row in enumerate(mesh):
            if len(row) != len(mesh):
                raise broken_rule(
                    f"mesh.{gpu}", f"as long as there are rows ({len(mesh)})", row, "give one number per GPU"
                )
            for other, links in enumerate(row):
                if links != mesh[other][gpu] or (gpu == other and links):
                    remedy = "links go both ways, and none leads from a GPU to itself"
                    raise broken_rule(
                        f"mesh.{gpu}.{other}", f"equal to mesh.{other}.{gpu} and 0 within a GPU", links, remedy
                    )
            if not any(row) and len(mesh) > 1:
                raise broken_rule(f"mesh.{gpu}", "more than zeros", row, "a GPU without links is not part of a mesh")
        return self

    @model_validator(mode="after")
    def _only_switches_reduce(self) -> Self:
        if self.nvls and self.kind != "nvswitch":
            raise broken_rule("nvls", 'false unless kind is "nvswitch"', self.nvls, "leave it out, or correct kind")
        return self


class NodeHostTable(SourcedTable):
    """`[host]`: the node's processor side."""

    pcie_gb_per_s: Speed = Field(description="GB/s between one GPU and host memory in each direction, such as 31.5")
    root_gb_per_s: Speed | None = Field(
        default=None,
        description="GB/s of all transfers together through the PCIe root and host memory, where GPUs have no NVLink",
    )
    efficiency: Share = Field(default=0.8, description="the share of these rates that large copies reach")
    cores: Count | None = Field(default=None, description="the number of processor cores of the node")
    issue_scale: Speed = Field(
        default=1.0, description="how much longer than usual its processors take to issue work to a GPU, such as 1.5"
    )
    memory_gb_per_s: Speed = Field(
        default=200.0, description="GB/s of host memory, all sockets; the default is an older server of two sockets"
    )
    disk_read_gb_per_s: Speed = Field(
        default=6.4, description="GB/s read from the local drives together; the default is one NVMe drive"
    )
    disk_write_gb_per_s: Speed = Field(
        default=3.2, description="GB/s written to the local drives together; the default is one NVMe drive"
    )


class NicsTable(SourcedTable):
    """`[nics]`: the node's network adapters."""

    count: Count = Field(description="the number of adapters of a node that training uses, such as 8")
    gbit_per_s: Speed = Field(description="Gbit/s of one adapter in each direction, such as 200")
    latency_us: Rate = Field(description="microseconds one way from adapter to adapter through one switch, such as 2")
    efficiency: Share = Field(default=0.9, description="the share of gbit_per_s that large messages reach")
    ring_efficiency: Share = Field(
        default=1.0, description="the share of a single message's rate that a ring of processes over TCP keeps (gloo)"
    )
    transport: Literal["rdma", "tcp"] = Field(description='"rdma" (InfiniBand, RoCE, EFA) or "tcp"')
    gpu_to_nic: list[Index] | None = Field(
        default=None, description="the adapter of each GPU, such as [0, 0, 1, 1]; by default spread evenly in order"
    )

    @model_validator(mode="after")
    def _adapters_exist(self) -> Self:
        for nic in self.gpu_to_nic or ():
            if nic >= self.count:
                raise broken_rule("gpu_to_nic", f"numbers below count ({self.count})", nic, "the first adapter is 0")
        return self


class PriceTable(SourcedTable):
    usd_per_node_hour: Speed = Field(description="US dollars for one node and one hour, such as 32.77")


class SwitchTable(SourcedTable):
    """One `[[fabric.tiers]]`: equal switches, each joining `below` nodes, or switches of the tier below."""

    below: Count | None = Field(
        default=None,
        description="the nodes (first tier) or lower switches that one switch joins; optional in the last tier",
    )
    oversubscription: Speed | None = Field(
        default=None, description="a switch's rate from below divided by its rate upwards; 1 is full rate"
    )
    uplink_gbit_per_s: Speed | None = Field(
        default=None, description="Gbit/s of one switch upwards, instead of oversubscription"
    )
    latency_us: Rate = Field(default=0.5, description="microseconds added by this tier's uplinks")
    efficiency: Share = Field(default=1.0, description="the share of the uplinks that routing can fill")

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.oversubscription is not None and self.uplink_gbit_per_s is not None:
            remedy = "keep one of the two"
            raise broken_rule("uplink_gbit_per_s", "left out beside oversubscription", self.uplink_gbit_per_s, remedy)
        return self


class SiteTable(TomlTable):
    """One `[[fabric.sites]]`: a data centre with the next `num_nodes` nodes."""

    name: Text = Field(description='the name of the data centre, such as "oregon"')
    num_nodes: Nodes = Field(description="the number of nodes there")
    gbit_per_s: Speed | None = Field(default=None, description="Gbit/s of its own link to the others, if different")


class BetweenSites(SourcedTable):
    """`[fabric.between_sites]`: the link that joins each data centre with the others."""

    gbit_per_s: Speed = Field(description="Gbit/s of a site's link in each direction, such as 10")
    latency_ms: Rate = Field(description="milliseconds one way between two sites, such as 15")
    efficiency: Share = Field(default=0.9, description="the share of gbit_per_s that training reaches")


class FabricTable(SourcedTable):
    """`[fabric]`: the switches between nodes. Without tiers: one switch that is never full."""

    rails: bool = Field(default=False, description="whether adapter k of every node is on leaf switch k")
    tiers: list[SwitchTable] = Field(default=[], description="the tables [[fabric.tiers]], from the nodes upwards")
    sites: list[SiteTable] = Field(default=[], description="the tables [[fabric.sites]]")
    between_sites: BetweenSites | None = Field(default=None, description="the table [fabric.between_sites]")

    @model_validator(mode="after")
    def _tiers_stand_on_each_other(self) -> Self:
        for level, tier in enumerate(self.tiers):
            key, last = f"tiers.{level}", level == len(self.tiers) - 1
            if tier.below is None and not last:
                raise broken_rule(
                    f"{key}.below", "given below the last tier", None, "give the number of nodes that a switch joins"
                )
            for name in ("oversubscription", "uplink_gbit_per_s"):
                value = getattr(tier, name)
                if last and value is not None:
                    remedy = "nothing is above it; add another [[fabric.tiers]]"
                    raise broken_rule(f"{key}.{name}", "left out in the last tier", value, remedy)
        return self

    @model_validator(mode="after")
    def _sites_are_joined(self) -> Self:
        names = [site.name for site in self.sites]
        if len(names) == 1:
            raise broken_rule("sites", "at least two", names, "omit a single site")
        if len(set(names)) < len(names):
            raise broken_rule("sites", "named differently", names, "give each its own name")
        if self.sites and self.between_sites is None:
            raise broken_rule("between_sites", "given with sites", None, "add the table [fabric.between_sites]")
        if self.between_sites is not None and not self.sites:
            raise broken_rule("between_sites", "left out without sites", "a table", "add [[fabric.sites]], two or more")
        return self


class NetworkFile(SourcedTable):
    """`catalogue/networks/<name>.toml`: adapters and switches that can take the place of a machine's own."""

    title: Text = Field(description='the network\'s name for people, such as "25 Gbit/s Ethernet"')
    nics: NicsTable = Field(description="the table [nics]")
    fabric: FabricTable | None = Field(default=None, description="the table [fabric]")


class NodeFile(SourcedTable):
    """One kind of node. A `[device]` table is read separately, as a DeviceFile."""

    title: Text = Field(description='the machine\'s name for people, such as "NVIDIA DGX A100"')
    gpus_per_node: Gpus = Field(description="the number of devices torch counts in one node, such as 8")
    device: Text = Field(description='a device of the catalogue, such as "a100-sxm4-80gb", or a table [device]')
    scale_up: ScaleUpTable | None = Field(default=None, description="the table [scale_up]")
    host: NodeHostTable | None = Field(default=None, description="the table [host]")
    nics: NicsTable | None = Field(default=None, description="the table [nics]")
    price: PriceTable | None = Field(default=None, description="the table [price]")

    @model_validator(mode="after")
    def _adapters_serve_the_gpus(self) -> Self:
        if self.nics is not None:
            check_adapters(self.nics, self.gpus_per_node)
        return self

    @model_validator(mode="after")
    def _mesh_has_the_gpus(self) -> Self:
        mesh = self.scale_up.mesh if self.scale_up else None
        if mesh is not None and len(mesh) != self.gpus_per_node:
            rule = f"as many rows as gpus_per_node ({self.gpus_per_node})"
            raise broken_rule("scale_up.mesh", rule, len(mesh), "give a row for each GPU")
        return self


class MachineFile(NodeFile):
    """`catalogue/machines/<name>.toml`, or a user's own file: equal nodes, and the fabric between them."""

    num_nodes: Nodes | None = Field(default=None, description="the number of nodes there are, such as 4")
    fabric: FabricTable | None = Field(default=None, description="the table [fabric]")
    placement: Placement = Field(
        default="node-major", description='"node-major", "round-robin", or the nodes in order, such as [2, 0, 1]'
    )


class NodeGroupTable(TomlTable):
    """One `[[groups]]`: `num_nodes` equal nodes. A `[groups.machine]` table is read separately, as a NodeFile."""

    machine: Text = Field(description='a machine such as "dgx-a100" or "rtx4090+10gbe", or a table [groups.machine]')
    num_nodes: Nodes = Field(description="the number of nodes of this kind, such as 4")
    nics: NicsTable | None = Field(default=None, description="the table [groups.nics], in place of the machine's own")


class GroupedFile(SourcedTable):
    """A user's own file with `[[groups]]` of unequal nodes, numbered in the order of the groups."""

    title: Text = Field(description="the cluster's name for people")
    groups: Annotated[list[NodeGroupTable], Field(min_length=1)] = Field(description="the tables [[groups]]")
    fabric: FabricTable | None = Field(default=None, description="the table [fabric]")
    placement: Placement = Field(
        default="node-major", description='"node-major", "round-robin", or the nodes in order, such as [2, 0, 1]'
    )


def check_adapters(nics: NicsTable, gpus: int) -> None:
    """Raise unless every adapter can have a GPU and every GPU has an adapter."""
    if nics.gpu_to_nic is not None and len(nics.gpu_to_nic) != gpus:
        remedy = f"give the adapter of each of the {gpus} GPUs"
        raise broken_rule("nics.gpu_to_nic", f"as long as gpus_per_node ({gpus})", nics.gpu_to_nic, remedy)
    if nics.count > gpus:
        remedy = "a GPU uses one adapter: count adapters that work together as one with their summed gbit_per_s"
        raise broken_rule("nics.count", f"at most gpus_per_node ({gpus})", nics.count, remedy)
