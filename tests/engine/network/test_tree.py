"""Double binary trees between nodes."""

import numpy as np
import pytest
from tests.engine.network.building import GIB, on_tier, plan, topology

from sandtable.engine.network.edges import double_tree


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 31, 64])
def test_both_trees_reach_every_node_and_share_the_inner_places(count):
    places = np.arange(count, dtype=np.int32)
    inner = []
    for above in double_tree(places, np.full(count, count, dtype=np.int32)):
        assert (above < 0).sum() == 1
        depth, at = 0, places.copy()
        while (above[at] >= 0).any():
            at = np.where(above[at] >= 0, above[at], at)
            depth += 1
        assert depth <= np.ceil(np.log2(count)) + 1
        children = np.bincount(above[above >= 0], minlength=count)
        assert children.max() <= 2
        inner.append(set(np.flatnonzero(children)))
    if count > 2:
        assert len(inner[0] & inner[1]) <= 2  # but for the roots


def test_every_node_sends_about_twice_the_message():
    wires = topology("dgx-h100", nodes=16)
    transfer = plan("all_reduce", GIB, [range(128)], wires, algorithm="tree")
    out = on_tier(transfer, wires, "nic").reshape(16, 8).sum(axis=1)
    assert out.max() <= 2 * GIB * (1 + 1e-9)
    assert out.sum() == pytest.approx(2 * 15 * GIB)  # 15 edges up, 15 down, in both trees together


def test_a_tree_beats_a_ring_for_small_messages_and_not_for_large_ones():
    wires = topology("dgx-a100", nodes=32)
    groups = [range(256)]
    assert plan("all_reduce", 65536, groups, wires).algorithm == "tree"
    ring = plan("all_reduce", 65536, groups, wires, algorithm="ring")
    tree = plan("all_reduce", 65536, groups, wires, algorithm="tree")
    assert ring.latency_ns > 5 * tree.latency_ns
    assert plan("all_reduce", 64 * GIB, groups, wires).algorithm == "ring"
