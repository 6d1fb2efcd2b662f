"""Who sends to whom in rings and trees over nodes: shared by several algorithms."""

import numpy as np
import numpy.typing as npt

from sandtable.engine.network.collective_call import CollectiveCall
from sandtable.engine.network.flows import Flow, Steps
from sandtable.engine.network.layout import GroupLayout
from sandtable.engine.network.mesh import ring_share
from sandtable.engine.network.transfer import Ints

__all__ = ["double_tree", "local_flow", "mesh_bound", "remote_edges", "tree_steps", "upwards"]


def local_flow(call: CollectiveCall, per_edge: float) -> Flow:
    """Return the flow between neighbours within a node: all round in a group of one node, else without the way back."""
    layout = call.layout
    length = layout.run_length[layout.run]
    alone = layout.num_nodes[layout.group] == 1
    weight = np.where(alone, 1.0, (length - 1) / length) * per_edge
    members = np.flatnonzero(length > 1)
    after = layout.next_local()[members]
    return Flow.of(call.topology, layout.ranks[members], layout.ranks[after], weight[members])


def remote_edges(layout: GroupLayout) -> tuple[Ints, Ints]:
    """Return the edges from each rail of a node to the same rail of the group's next node, as members of `layout`."""
    rails = layout.rails()
    group = layout.group[rails]
    rails = rails[layout.num_nodes[group] > 1]
    group = layout.group[rails]
    first, count = layout.first_run[group], layout.num_nodes[group]
    after = first + (layout.run[rails] - first + 1) % count
    return rails, layout.on_run(rails, after)


def mesh_bound(call: CollectiveCall, per_edge: float) -> float:
    """Return the seconds per byte of the message at the rate of rings through the nodes' mesh of links."""
    layout, topology = call.layout, call.topology
    if not any(kind.scale_up.mesh for kind in call.kinds):
        return 0.0
    slowest = 0.0
    seen: set[tuple[int, ...]] = set()
    for start, length in zip(layout.run_start.tolist(), layout.run_length.tolist(), strict=True):
        ranks = layout.ranks[start : start + length]
        kind = int(topology.kind_of_node[topology.node_of[ranks[0]]])
        key = (kind, *topology.slot_of[ranks].tolist())
        if length > 1 and key not in seen:
            seen.add(key)
            share = ring_share(topology.kinds[kind], key[1:])
            port = topology.routes(ranks[:1], ranks[1:2])[0, 0]
            slowest = max(slowest, per_edge / (share * float(topology.bandwidth_bytes_per_s[port])))
    return slowest


def upwards(call: CollectiveCall) -> Flow:
    """Return the flow from every node to its parent in both trees, half of the data each, over all rails."""
    child, parent = _tree_edges(call.layout)
    ranks = call.layout.ranks
    return Flow.of(call.topology, ranks[child], ranks[parent], 0.5 * call.layout.rail_weight(child))


def tree_steps(call: CollectiveCall, up: Flow, *, num_local: float) -> Steps:
    """Return the steps up and down the deeper side of a tree."""
    depth = float(np.floor(np.log2(call.layout.max_nodes)))
    return Steps(num_local=num_local, num_remote=2 * depth, wire_ns=2 * depth * up.longest_delay_ns)


def _tree_edges(layout: GroupLayout) -> tuple[Ints, Ints]:
    """Return child and parent members of both trees, one edge per rail."""
    rails = layout.rails()
    rails = rails[layout.num_nodes[layout.group[rails]] > 1]
    first, count = layout.first_run[layout.group[rails]], layout.num_nodes[layout.group[rails]]
    place = layout.run[rails] - first
    children, parents = [], []
    for above in double_tree(place, count):
        has_parent = above >= 0
        children.append(rails[has_parent])
        parents.append(layout.on_run(rails[has_parent], (first + above)[has_parent]))
    return np.concatenate(children), np.concatenate(parents)


def double_tree(place: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return the parent of each position among `count` in the two trees, -1 for a root.

    The second tree is the first with positions shifted by one (odd count) or mirrored (even), which swaps leaves and
    inner positions.
    """
    odd = count % 2 == 1
    other = np.where(odd, (place - 1) % count, count - 1 - place)
    above = _binary_tree(other, count)
    second = np.where(odd, (above + 1) % count, count - 1 - above)
    return _binary_tree(place, count), np.where(above < 0, -1, second).astype(np.int32)


def _binary_tree(place: npt.NDArray[np.int32], count: Ints) -> Ints:
    """Return parents in an in-order binary tree: odd positions are leaves, the lowest one-bit is the height."""
    bit = place & -place
    above = (place ^ bit) | (bit << 1)
    above = np.where(above >= count, place ^ bit, above)
    return np.where(place == 0, -1, above).astype(np.int32)
