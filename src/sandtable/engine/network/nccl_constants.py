"""What NCCL costs beyond the wires: latency by protocol and link, the share of the wire that is data, channels.

Protocols, from the quickest to the one that fills the wire: LL sends a flag with every 4 bytes (half of the wire is
data), LL128 one with every 120, Simple none, but its steps wait for each other.

Each number names its origin:
  nccl     NCCL's own tuning table (src/graph/tuning.cc, topo.h and paths.cc of version 2.28), in our units
  fitted   to the curves marked `calibrated` in validation/rows/collectives.toml, and to nothing else
  paper    a published measurement, named
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sandtable.cluster.device import Device

__all__ = [
    "LL",
    "LL128",
    "NET_OVERHEAD_NS",
    "P2P_BYTES_PER_S_PER_CHANNEL",
    "P2P_NIC_BYTES_PER_S_PER_CHANNEL",
    "SIMPLE",
    "Generation",
    "Speeds",
    "generation_of",
]

LL, LL128, SIMPLE = "LL", "LL128", "Simple"

# The least cost of a ring's step within a node when the ring leaves the node: posting to the network (nccl).
NET_OVERHEAD_NS = {LL: 1e3, LL128: 1e3, SIMPLE: 3e3}

# A send to another node gets one channel for every 14 GB/s of its adapter, but at least two (nccl) ...
P2P_NIC_BYTES_PER_S_PER_CHANNEL = 14e9
# ... and a channel carried 9.3 GB/s where it was measured (paper: Narayanan et al. 2021, section 5.9: 892 GB/s between
# the stages of 6 pipelines over 8 adapters per node, two channels each).
P2P_BYTES_PER_S_PER_CHANNEL = 9.3e9

_US, _GB = 1e3, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """One algorithm with one protocol.

    A call costs `base_ns`, then `nvlink_ns` or `pcie_ns` per step within a node and `net_ns` per step between nodes,
    plus the wire's own delay `num_trips` times. `wire_share` is the share of the wire that is data; `max_bytes_per_s`
    bounds the bus bandwidth on 1, 2 and more nodes (0: no bound). While the pipeline fills, work of w ns takes w +
    ramp_ns * w / (w + ramp_scale_ns): longer by a constant when large. `medium_shares` are the shares of the rate that
    messages of 64 bytes and every doubling reach, 1 above the last.
    """

    base_ns: float
    nvlink_ns: float
    pcie_ns: float
    net_ns: float
    num_trips: int = 1
    wire_share: float = 1.0
    max_bytes_per_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ramp_ns: float = 0.0
    ramp_scale_ns: float = 1.0
    medium_shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation of GPUs: `speeds` by algorithm and protocol.

    `num_channels` kernels (one multiprocessor each) drive a collective, `num_nvls_channels` one in the switch,
    `num_p2p_channels` a send. A ring within a node spends `extra_steps` beyond its 2(n-1) on local copies. `nvls_share`
    is the share of the port's achievable rate that the switch's reduction reaches.
    """

    name: str
    speeds: Mapping[tuple[str, str], Speeds]
    num_channels: int
    num_nvls_channels: int
    num_p2p_channels: int
    extra_steps: float
    nvls_share: float


def generation_of(device: Device) -> Generation:
    """Return the constants for `device`; a vendor or generation without its own gets the nearest."""
    if device.vendor != "nvidia":
        return _AMPERE  # RCCL descends from NCCL; no curve of it is available
    for capability, generation in ((100, _BLACKWELL), (90, _HOPPER), (80, _AMPERE)):
        if 10 * device.major + device.minor >= capability:
            return generation
    return _VOLTA


# Latencies of tuning.cc: base, then a step over NVLink, PCIe and the network. `net_ns` of ring Simple includes the
# factor 1.4 that NCCL adds for rings between nodes; Simple crosses the wire twice, since data must be flushed.
_RING_LL = Speeds(base_ns=6.6 * _US, nvlink_ns=0.6 * _US, pcie_ns=1.0 * _US, net_ns=2.7 * _US, wire_share=0.5)
_RING_LL128 = Speeds(base_ns=14.0 * _US, nvlink_ns=1.9 * _US, pcie_ns=2.5 * _US, net_ns=4.0 * _US, wire_share=0.92)
_RING_SIMPLE = Speeds(base_ns=8.4 * _US, nvlink_ns=3.4 * _US, pcie_ns=5.7 * _US, net_ns=1.4 * 14.0 * _US, num_trips=2)
_TREE_LL = Speeds(
    base_ns=6.8 * _US,
    nvlink_ns=0.6 * _US,
    pcie_ns=1.0 * _US,
    net_ns=5.0 * _US,
    wire_share=0.92 / 3.8,
    medium_shares=(1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1),
)
_TREE_LL128 = Speeds(
    base_ns=14.0 * _US,
    nvlink_ns=1.25 * _US,
    pcie_ns=1.9 * _US,
    net_ns=8.5 * _US,
    wire_share=0.92 * 120 / 128,
    medium_shares=(
        *(1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6),
        *(0.8, 0.9, 0.9, 0.9, 0.9, 1),
    ),
)
_TREE_SIMPLE = Speeds(
    base_ns=8.4 * _US,
    nvlink_ns=4.0 * _US,
    pcie_ns=4.0 * _US,
    net_ns=14.0 * _US,
    num_trips=2,
    wire_share=0.92,
    medium_shares=(
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6),
        *(0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
)
_NVLS = Speeds(base_ns=25.0 * _US, nvlink_ns=0.0, pcie_ns=0.0, net_ns=20.9 * _US, num_trips=2)
_P2P_LL = Speeds(base_ns=6.6 * _US, nvlink_ns=0.6 * _US, pcie_ns=1.0 * _US, net_ns=5.0 * _US, wire_share=0.5)
_P2P_SIMPLE = Speeds(base_ns=8.4 * _US, nvlink_ns=3.4 * _US, pcie_ns=5.7 * _US, net_ns=14.0 * _US, num_trips=2)


def _speeds(
    *, ll_max: tuple[float, float, float], ring_simple: Speeds, nvls: Speeds = _NVLS, has_ll128: bool
) -> dict[tuple[str, str], Speeds]:
    """Return the table of one generation: NCCL's numbers except where given. `ll_max` is in GB/s."""
    bound = (ll_max[0] * _GB, ll_max[1] * _GB, ll_max[2] * _GB)
    ramp, scale = ring_simple.ramp_ns, ring_simple.ramp_scale_ns
    table = {
        ("ring", LL): replace(_RING_LL, max_bytes_per_s=bound),
        ("ring", SIMPLE): ring_simple,
        ("tree", LL): replace(_TREE_LL, max_bytes_per_s=bound),
        ("tree", SIMPLE): _TREE_SIMPLE,
        ("nvls", SIMPLE): nvls,
        ("nvls-tree", SIMPLE): replace(nvls, base_ns=nvls.base_ns + 8.4 * _US),
        ("p2p", LL): replace(_P2P_LL, max_bytes_per_s=bound),
        ("p2p", SIMPLE): replace(_P2P_SIMPLE, ramp_ns=ramp, ramp_scale_ns=scale),
    }
    if has_ll128:
        table["ring", LL128] = _RING_LL128
        table["tree", LL128] = _TREE_LL128
    return table


# NCCL's maximum (nccl): two thread blocks for each NVLink of a V100 or A100, 24 or 16 on Hopper, 32 for NVLS on
# Blackwell. LL128 is left out where no calibrated curve shows its lower latency.
_VOLTA = Generation(
    name="volta",
    speeds=_speeds(
        ll_max=(29.0, 39.0, 20.4),  # within a node fitted (nccl: 39); between nodes nccl
        ring_simple=replace(_RING_SIMPLE, base_ns=14.0 * _US, nvlink_ns=4.7 * _US),  # fitted
        has_ll128=False,
    ),
    num_channels=12,
    num_nvls_channels=0,
    num_p2p_channels=4,
    extra_steps=0.0,
    nvls_share=0.0,
)

_AMPERE = Generation(
    name="ampere",
    speeds=_speeds(
        ll_max=(25.0, 22.5, 19.0),  # within a node fitted (nccl: 87.7); between nodes nccl
        ring_simple=replace(  # fitted
            _RING_SIMPLE, base_ns=31.0 * _US, nvlink_ns=3.1 * _US, ramp_ns=28.0 * _US, ramp_scale_ns=140.0 * _US
        ),
        has_ll128=False,
    ),
    num_channels=24,
    num_nvls_channels=0,
    num_p2p_channels=8,
    extra_steps=0.45,  # fitted
    nvls_share=0.0,
)

_NVLS_FITTED = replace(_NVLS, ramp_ns=74.0 * _US, ramp_scale_ns=53.0 * _US)

_HOPPER = Generation(
    name="hopper",
    speeds=_speeds(ll_max=(141.0, 45.0, 35.0), ring_simple=_RING_SIMPLE, nvls=_NVLS_FITTED, has_ll128=True),  # nccl
    num_channels=24,
    num_nvls_channels=16,
    num_p2p_channels=8,
    extra_steps=0.0,
    nvls_share=0.834,  # fitted: 480 GB/s of bus bandwidth = 14/9 x 0.834 x 370 GB/s; nccl: 0.85
)

_BLACKWELL = Generation(
    name="blackwell",
    speeds=_speeds(ll_max=(282.0, 90.0, 70.0), ring_simple=_RING_SIMPLE, nvls=_NVLS_FITTED, has_ll128=True),  # nccl
    num_channels=24,
    num_nvls_channels=32,
    num_p2p_channels=8,
    extra_steps=0.0,
    # nccl: 0.74 of 18 links of 40.1 GB/s, scaled as Hopper's 0.85 of 18 x 20.6 GB/s turned out, over the ring's rate
    nvls_share=0.767,
)
