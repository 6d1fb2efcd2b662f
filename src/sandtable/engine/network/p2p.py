"""Send and receive: one message straight from one rank to another.

Few channels drive a single message, so it does not always fill the wire: to another node a channel's rate is limited,
and in a mesh only the links between the two GPUs count.
"""

import numpy as np

from sandtable.cluster.topology import Topology
from sandtable.engine.network.flows import Flow, Steps, make_pattern
from sandtable.engine.network.mesh import pair_share
from sandtable.engine.network.nccl_constants import P2P_BYTES_PER_S_PER_CHANNEL, P2P_NIC_BYTES_PER_S_PER_CHANNEL
from sandtable.engine.network.transfer import Floats, Ints, LinkPattern

__all__ = ["p2p_pattern"]


def p2p_pattern(topology: Topology, src: Ints, dst: Ints) -> LinkPattern:
    """Return the pattern of one byte from each `src[i]` to `dst[i]` at the same time."""
    flow = Flow.of(topology, src, dst, 1.0)
    remote = topology.node_of[src] != topology.node_of[dst]
    delay = float(flow.delay_ns[remote].max(initial=0.0))
    steps = Steps(
        num_local=float(bool((~remote & (src != dst)).any())), num_remote=float(bool(remote.any())), wire_ns=delay
    )
    narrowest = topology.route_bandwidth_bytes_per_s(flow.routes[remote])
    slowest = max(_over_adapters(narrowest), _in_meshes(topology, src[~remote], dst[~remote]))
    return make_pattern(topology, [[flow]], steps, slowest=slowest)


def _over_adapters(narrowest: Floats) -> float:
    """Return the seconds per byte of a message's channels on routes whose narrowest links have these rates."""
    channels = np.maximum(2.0, np.ceil(narrowest / P2P_NIC_BYTES_PER_S_PER_CHANNEL))
    return float((1.0 / np.minimum(narrowest, channels * P2P_BYTES_PER_S_PER_CHANNEL)).max(initial=0.0))


def _in_meshes(topology: Topology, src: Ints, dst: Ints) -> float:
    """Return the seconds per byte over the links that join two GPUs directly."""
    if not any(kind.scale_up.mesh for kind in topology.kinds):
        return 0.0
    slowest = 0.0
    for a, b in {(int(a), int(b)) for a, b in zip(src, dst, strict=True) if a != b}:
        kind = topology.kinds[int(topology.kind_of_node[topology.node_of[a]])]
        port = topology.routes([a], [b])[0, 0]
        share = pair_share(kind, int(topology.slot_of[a]), int(topology.slot_of[b]))
        slowest = max(slowest, 1.0 / (share * float(topology.bandwidth_bytes_per_s[port])))
    return slowest
