"""One kind of node: its devices, the links between them, and its way to the network.

Picture a workshop: the GPUs are benches that hand work to each other (scale-up: NVLink, or failing that PCIe and host
memory), and every bench has a door to the street (its network adapter), alone or shared with the next bench.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sandtable.cluster.device import Device, Origin

__all__ = ["Host", "Nics", "NodeKind", "Price", "ScaleUp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """The link between GPUs of a node: `bandwidth_bytes_per_s` is nominal, of one GPU's port, in each direction.

    `kind` is nvswitch, nvlink (a mesh, also AMD's xGMI), pcie or host (GPUs without peer access copy through memory).
    `efficiency` is the share of the nominal bandwidth that large transfers reach, `latency_ns` from GPU to GPU. `mesh`
    has the number of links between each pair of GPUs where pairs differ.
    """

    kind: str
    bandwidth_bytes_per_s: float
    latency_ns: int
    efficiency: float
    nvls: bool
    mesh: tuple[tuple[int, ...], ...]
    origin: Origin

    @property
    def has_nvlink(self) -> bool:
        return self.kind in ("nvswitch", "nvlink")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The processor side: PCIe between a GPU and host memory, and the total rate of the root.

    `root_bytes_per_s` matters only where GPUs have no NVLink: then everything they send passes through it. `num_cores`
    is 0 where unknown. `issue_scale` is the time these processors and their software take to issue an operator, as a
    multiple of the time in the device's efficiency table. `memory_bytes_per_s` is the nominal bandwidth of all sockets'
    memory, and the rates of the disks are those of all local drives together.
    """

    pcie_bytes_per_s: float
    root_bytes_per_s: float
    efficiency: float
    num_cores: int
    issue_scale: float
    memory_bytes_per_s: float
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Nics:
    """The network adapters: `bandwidth_bytes_per_s` is nominal, of one adapter, in each direction.

    `of_gpu[g]` is the adapter of GPU g. `latency_ns` is one way, adapter to adapter, through one switch.
    `ring_efficiency` is the share of a single message's rate that gloo's rings keep, since every step waits for
    another.
    """

    count: int
    bandwidth_bytes_per_s: float
    latency_ns: int
    efficiency: float
    ring_efficiency: float
    transport: str
    of_gpu: tuple[int, ...]
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    usd_per_node_hour: float
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """One kind of machine: `num_gpus` equal devices. A device is what torch counts: a MI250X card is two of them."""

    name: str
    title: str
    num_gpus: int
    device: Device
    scale_up: ScaleUp
    host: Host
    nics: Nics
    price: Price | None
    origin: Origin

    def scale_up_share(self, gpus: Sequence[int]) -> float:
        """Return the share of its port that each of `gpus` can use if only they talk to each other: 1 behind a switch.

        In a mesh, links to GPUs outside lie idle: two neighbours in a DGX-1 have 1 or 2 of their 6 links. Rings run in
        both directions, so an odd link is left over. GPUs without a direct link go over PCIe.
        """
        mesh, chosen = self.scale_up.mesh, sorted(set(gpus))
        if not mesh or len(chosen) in (1, self.num_gpus):
            return 1.0
        links = min(sum(mesh[gpu][other] for other in chosen) for gpu in chosen)
        paired = links if len(chosen) == 2 else links - links % 2
        pcie = self.host.pcie_bytes_per_s * self.host.efficiency
        port = self.scale_up.bandwidth_bytes_per_s * self.scale_up.efficiency
        return min(1.0, max(paired / max(sum(row) for row in mesh), pcie / port))

    @property
    def usd_per_hour(self) -> float | None:
        """The price of one node per hour, where known."""
        return self.price.usd_per_node_hour if self.price else None
