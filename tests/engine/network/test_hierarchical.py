"""Reduce-scatter within nodes, all-reduce between them, all-gather within."""

import pytest
from tests.engine.network.building import GIB, plan, topology

from sandtable.errors import ClusterError


def test_the_times_of_the_phases_add_up():
    wires = topology("dgx-h100", nodes=4)
    nic = wires.tier("nic")
    assert nic is not None
    local_rate, remote_rate = wires.bandwidth_bytes_per_s[0], wires.bandwidth_bytes_per_s[nic.first]
    transfer = plan("all_reduce", GIB, [range(32)], wires, algorithm="hierarchical")
    expected = 2 * 7 / 8 * GIB / local_rate + 2 * 3 / 4 * GIB / 8 / remote_rate
    assert transfer.work_ns == pytest.approx(1e9 * expected)


def test_it_needs_fewer_slow_steps_than_a_flat_ring():
    wires = topology("dgx-h100", nodes=4)
    flat = plan("all_reduce", GIB, [range(32)], wires, algorithm="ring")
    assert plan("all_reduce", GIB, [range(32)], wires, algorithm="hierarchical").latency_ns < flat.latency_ns


def test_nodes_with_unequal_numbers_of_members_cannot_do_it():
    with pytest.raises(ClusterError, match="omit it"):
        plan("all_reduce", GIB, [[0, 1, 8]], topology("dgx-h100", nodes=2), algorithm="hierarchical")
