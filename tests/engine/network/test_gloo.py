"""Gloo over TCP."""

from dataclasses import replace

import pytest
from tests.engine.network.building import MIB, SIZED, on_tier, plan, topology

from sandtable.engine.network import GlooCosts, Planner, plan_p2p
from sandtable.errors import ClusterError

NO_HOST = GlooCosts(call_ns=0.0, step_ns=0.0, copy_bytes_per_s=1e15, reduce_bytes_per_s=1e15)
HOSTS = [range(4)]
SERVERS = [[8 * server for server in range(32)]]


def lab():
    return topology("lab", nodes=4)


def rate(wires) -> float:
    nic = wires.tier("nic")
    assert nic is not None
    return float(wires.bandwidth_bytes_per_s[nic.first])


def work_s(op: str, size: int, wires, **more) -> float:
    planner = Planner(wires, backend="gloo", gloo_costs=NO_HOST)
    bytes_in, bytes_out = SIZED[op](size, 4)
    return planner.collective(op, bytes_in=bytes_in, bytes_out=bytes_out, groups=HOSTS, **more).work_ns / 1e9


def test_all_reduce_is_a_ring_of_two_passes():
    wires = lab()
    assert work_s("all_reduce", 10 * MIB, wires) == pytest.approx(2 * 3 / 4 * 10 * MIB / rate(wires))


def test_reduce_scatter_costs_as_much_as_all_reduce():
    wires = lab()
    assert work_s("reduce_scatter", 10 * MIB, wires) == work_s("all_reduce", 10 * MIB, wires)


def test_broadcast_sends_everything_once_for_each_doubling():
    wires = lab()
    assert work_s("broadcast", 10 * MIB, wires) == pytest.approx(2 * 10 * MIB / rate(wires))


def test_halving_and_doubling_moves_as_much_as_a_ring_in_fewer_steps():
    wires = topology("big-basin-p100", nodes=32)
    ring = plan("all_reduce", MIB, SERVERS, wires, backend="gloo")
    halving = plan("all_reduce", MIB, SERVERS, wires, backend="gloo", algorithm="halving-doubling")
    assert halving.pattern.num_steps == 10
    assert ring.pattern.num_steps == 62
    assert halving.bytes_on_links.sum() == pytest.approx(ring.bytes_on_links.sum(), rel=0.001)


def test_halving_and_doubling_is_three_times_faster_for_a_tensor_of_resnet_50():
    # Goyal et al. 2017: three times faster than a ring at 32 servers; 100 MB in 161 tensors.
    wires = topology("big-basin-p100", nodes=32)
    size = 100_000_000 // 161
    ring = plan("all_reduce", size, SERVERS, wires, backend="gloo")
    halving = plan("all_reduce", size, SERVERS, wires, backend="gloo", algorithm="halving-doubling")
    assert ring.total_ns / halving.total_ns == pytest.approx(3, rel=0.35)


def test_a_slow_host_decides_where_the_wire_is_fast():
    wires = topology("lab", nodes=2)
    costs = GlooCosts(call_ns=0.0, step_ns=0.0, copy_bytes_per_s=1e6, reduce_bytes_per_s=1e15)
    planner = Planner(wires, backend="gloo", gloo_costs=costs)
    transfer = planner.p2p(MIB, src=[0], dst=[1])
    assert transfer.work_ns == pytest.approx(1e9 * MIB / 1e6)
    assert transfer.loads.max() < 0.5


def test_a_message_crosses_the_adapters_of_both_ends():
    wires = lab()
    transfer = plan_p2p(MIB, src=[0], dst=[2], topology=wires, backend="gloo")
    assert on_tier(transfer, wires, "nic").tolist() == [MIB, 0, 0, 0]
    assert on_tier(transfer, wires, "nic", way=1).tolist() == [0, 0, MIB, 0]


def test_it_takes_no_multiprocessors():
    assert plan("all_reduce", MIB, HOSTS, lab(), backend="gloo").sm_share == 0


def test_an_algorithm_that_gloo_does_not_have_is_refused():
    with pytest.raises(ClusterError, match="halving-doubling for all_reduce"):
        plan("all_reduce", MIB, HOSTS, lab(), backend="gloo", algorithm="nvls")


def test_a_message_waits_behind_what_its_receiver_sends_in_the_same_batch():
    planner = Planner(lab(), backend="gloo")
    alone = planner.p2p(MIB, src=[0], dst=[1])
    held_up = planner.p2p(MIB, src=[0], dst=[1], behind_bytes=2 * MIB)
    assert held_up.latency_ns - alone.latency_ns == pytest.approx(2 * alone.work_ns)
    assert held_up.work_ns == alone.work_ns


def test_a_ring_keeps_its_share_of_the_wire_and_a_message_all_of_it(monkeypatch):
    before = Planner(lab(), backend="gloo")
    wires = lab()
    kinds = tuple(replace(kind, nics=replace(kind.nics, ring_efficiency=0.5)) for kind in wires.kinds)
    monkeypatch.setattr(wires, "kinds", kinds)
    after = Planner(wires, backend="gloo")
    slow, fast = (
        each.collective("all_reduce", bytes_in=MIB, bytes_out=MIB, groups=HOSTS).work_ns for each in (after, before)
    )
    assert slow == 2 * fast
    assert after.p2p(MIB, src=[0], dst=[1]).work_ns == before.p2p(MIB, src=[0], dst=[1]).work_ns
