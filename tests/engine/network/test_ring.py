"""Rings: closed formulas, and bytes on every port."""

import numpy as np
import pytest
from tests.engine.network.building import GIB, MIB, on_tier, plan, topology, with_slow_adapters

from sandtable.engine.network.nccl_constants import generation_of


def ring_simple(wires):
    return generation_of(wires.devices[0]).speeds["ring", "Simple"]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize(("op", "passes"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_in_one_node_takes_what_the_formula_says(op, passes, size):
    wires = topology("dgx-h100")
    transfer = plan(op, GIB, [range(size)], wires, algorithm="ring")
    rate = wires.bandwidth_bytes_per_s[0]
    speeds = ring_simple(wires)
    assert transfer.protocol == "Simple"
    assert transfer.work_ns == pytest.approx(1e9 * passes * (size - 1) / size * GIB / rate)
    assert transfer.latency_ns == pytest.approx(speeds.base_ns + passes * (size - 1) * speeds.nvlink_ns)


def test_a_ring_between_nodes_goes_at_the_rate_of_all_adapters_together():
    wires = topology("dgx-a100", nodes=4)
    transfer = plan("all_reduce", 16 * GIB, [range(32)], wires, algorithm="ring")
    nic = wires.tier("nic")
    assert nic is not None
    together = 8 * wires.bandwidth_bytes_per_s[nic.first]
    wire_ns = 1e9 * 2 * 31 / 32 * 16 * GIB / together
    assert transfer.work_ns == pytest.approx(wire_ns, rel=0.001)
    assert transfer.loads.max() == pytest.approx(1.0, rel=0.001)


@pytest.mark.parametrize("size", [2, 5, 8])
def test_bytes_on_ports_are_the_bytes_sent(size):
    wires = topology("dgx-h100")
    transfer = plan("all_reduce", GIB, [range(size)], wires, algorithm="ring")
    for way in (0, 1):
        assert on_tier(transfer, wires, "gpu", way=way).sum() == pytest.approx(size * 2 * (size - 1) / size * GIB)


def test_every_adapter_carries_its_part_of_what_leaves_a_node():
    wires = topology("dgx-h100", nodes=4)
    transfer = plan("all_reduce", GIB, [range(32)], wires, algorithm="ring")
    out = on_tier(transfer, wires, "nic")
    assert out == pytest.approx(np.full(32, 2 * 31 / 32 * GIB / 8))


def test_siblings_that_share_an_adapter_take_turns():
    wires = topology("vtrain-a100", nodes=4)  # two GPUs an adapter
    one = plan("all_reduce", 16 * GIB, [[0, 8, 16, 24]], wires, algorithm="ring")
    groups = np.arange(32).reshape(4, 8).T
    eight = plan("all_reduce", 16 * GIB, groups, wires, algorithm="ring")
    assert eight.work_ns == pytest.approx(2 * one.work_ns, rel=0.001)


def test_siblings_with_adapters_of_their_own_do_not_disturb_each_other():
    wires = topology("dgx-a100", nodes=4)
    one = plan("all_reduce", GIB, [[0, 8, 16, 24]], wires)
    eight = plan("all_reduce", GIB, np.arange(32).reshape(4, 8).T, wires)
    assert eight.total_ns == pytest.approx(one.total_ns)


def test_the_slowest_link_of_the_ring_decides():
    wires = with_slow_adapters("dgx-a100", share=0.1)
    even = topology("dgx-a100", nodes=2)
    slow = plan("all_reduce", 16 * GIB, [range(16)], wires, algorithm="ring")
    fast = plan("all_reduce", 16 * GIB, [range(16)], even, algorithm="ring")
    assert slow.work_ns == pytest.approx(10 * fast.work_ns, rel=0.01)


def test_two_gpus_of_a_mesh_have_only_the_links_between_them():
    wires = topology("dgx1-v100")
    pair = plan("all_reduce", GIB, [[0, 1]], wires, algorithm="ring")
    full = plan("all_reduce", GIB, [range(8)], wires, algorithm="ring")
    bus_of_pair = GIB / pair.work_ns
    bus_of_all = 2 * 7 / 8 * GIB / full.work_ns
    assert bus_of_pair == pytest.approx(bus_of_all / 6)  # one of six links
    assert pair.loads.max() == pytest.approx(1 / 6)


def test_a_broadcast_sends_nothing_to_its_root():
    wires = topology("dgx-h100")
    transfer = plan("broadcast", MIB, [range(8)], wires, root=3)
    into = on_tier(transfer, wires, "gpu", way=1)
    assert into.tolist() == [MIB, MIB, MIB, 0, MIB, MIB, MIB, MIB]


def test_a_reduce_makes_its_root_send_nothing():
    wires = topology("dgx-h100")
    transfer = plan("reduce", MIB, [range(8)], wires, root=3)
    assert on_tier(transfer, wires, "gpu")[3] == 0
