"""Sends and receives."""

import numpy as np
import pytest
from tests.engine.network.building import GIB, MIB, plan, topology

from sandtable.engine.network import plan_p2p


def test_between_pipeline_stages_a_message_gets_three_quarters_of_the_adapter():
    # Narayanan et al. 2021: 892 GB/s over 6 x 8 adapters of 25 GB/s
    wires = topology("dgx-a100", nodes=2)
    transfer = plan_p2p(GIB, src=np.arange(8), dst=np.arange(8, 16), topology=wires)
    rate = GIB / transfer.work_ns
    assert rate == pytest.approx(892 / 48, rel=0.02)


def test_within_a_node_a_message_gets_its_port():
    wires = topology("dgx-a100")
    transfer = plan_p2p(GIB, src=[0], dst=[1], topology=wires)
    assert GIB / transfer.work_ns == pytest.approx(wires.bandwidth_bytes_per_s[0] / 1e9, rel=0.01)


def test_senders_that_share_an_adapter_share_its_rate():
    wires = topology("vtrain-a100", nodes=2)
    one = plan_p2p(GIB, src=[0], dst=[8], topology=wires)
    two = plan_p2p(GIB, src=[0, 1], dst=[8, 9], topology=wires)
    assert two.work_ns > 1.5 * one.work_ns
    assert two.loads.max() > 0.99


def test_two_gpus_of_a_mesh_without_a_link_still_reach_each_other():
    wires = topology("dgx1-v100")
    near = plan_p2p(GIB, src=[0], dst=[3], topology=wires)  # two links
    far = plan_p2p(GIB, src=[0], dst=[7], topology=wires)  # none
    assert far.work_ns == pytest.approx(2 * near.work_ns)


def test_a_message_to_oneself_takes_no_time():
    assert plan_p2p(GIB, src=[3], dst=[3], topology=topology()).total_ns == 0


def test_a_small_message_costs_its_latency():
    wires = topology("dgx-a100", nodes=2)
    near = plan_p2p(8, src=[0], dst=[1], topology=wires)
    far = plan_p2p(8, src=[0], dst=[8], topology=wires)
    assert near.protocol == far.protocol == "LL"
    assert near.latency_ns < far.latency_ns < 20_000


def test_all_to_all_fills_the_port_with_what_goes_to_others():
    wires = topology("dgx-h100")
    transfer = plan("all_to_all", GIB, [range(8)], wires)
    assert transfer.work_ns == pytest.approx(1e9 * 7 / 8 * GIB / wires.bandwidth_bytes_per_s[0], rel=0.001)


@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_the_roots_port_is_the_narrow_place_of_a_gather_and_a_scatter(op):
    wires = topology("dgx-h100")
    transfer = plan(op, GIB, [range(8)], wires, root=2)
    fullest = transfer.links[np.argmax(transfer.loads)]
    assert wires.link_name(fullest) == f"node 0 gpu 2 {'in' if op == 'gather' else 'out'}"
    assert transfer.loads.max() == pytest.approx(1.0)


def test_tensor_parallelism_across_nodes_is_slow():
    wires = topology("vtrain-a100", nodes=2)
    inside = plan("all_reduce", 64 * MIB, [range(8)], wires)
    across = plan("all_reduce", 64 * MIB, [range(16)], wires)
    assert across.total_ns > 1.7 * inside.total_ns
