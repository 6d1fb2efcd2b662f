"""Direct: every piece goes straight from the member that has it to the one that wants it.

All-to-all (each member sends S/n to each other one), gather and scatter (S/n between the root and each other member),
as NCCL and torch build them from sends and receives. Sends to different members share the sender's port.
"""

import numpy as np

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.collective_call import CollectiveCall
from sandtable.engine.network.flows import Flow, Steps, make_pattern
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import LinkPattern

__all__ = ["Direct"]

_MAX_FLOWS = 2_000_000
_PEERS_AT_ONCE = 8  # nccl: sends of one batch run side by side


class Direct(Algorithm):
    """Pairs exchange their pieces, a few peers at a time."""

    name = "direct"
    speeds = "p2p"
    ops = frozenset({"all_to_all", "gather", "scatter"})

    def pattern(self, call: CollectiveCall, generation: Generation) -> LinkPattern:
        flow = _all_pairs(call) if call.op == "all_to_all" else _star(call)
        rounds = float(-(-(call.size - 1) // _PEERS_AT_ONCE))
        if not call.spans_nodes:
            return make_pattern(call.topology, [[flow]], Steps(num_local=rounds))
        steps = Steps(num_local=0.0, num_remote=rounds, wire_ns=rounds * flow.longest_delay_ns)
        return make_pattern(call.topology, [[flow]], steps)


def _all_pairs(call: CollectiveCall) -> Flow:
    """Return the flow from member i to i + shift, for every shift; if there are many, for an even sample."""
    size = call.size
    shifts = np.arange(1, size)
    most = max(1, _MAX_FLOWS // len(call.layout.ranks))
    if len(shifts) > most:
        shifts = np.unique(np.linspace(1, size - 1, most).astype(np.int64))
    table = call.layout.ranks.reshape(-1, size)
    src = np.broadcast_to(table[:, :, None], (*table.shape, len(shifts)))
    dst = table[:, (np.arange(size)[:, None] + shifts) % size]
    return Flow.of(call.topology, src.ravel(), dst.ravel(), (size - 1) / size / len(shifts))


def _star(call: CollectiveCall) -> Flow:
    """Return the flow between every other member and the root of its group."""
    table = call.layout.ranks.reshape(-1, call.size)
    roots = np.broadcast_to(call.roots[:, None], table.shape)
    others = table != roots
    leaf, root = table[others], roots[others]
    src, dst = (leaf, root) if call.op == "gather" else (root, leaf)
    return Flow.of(call.topology, src, dst, 1.0 / call.size)
