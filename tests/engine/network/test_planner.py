"""What must hold for every operation, backend and machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.network.building import GIB, MIB, SIZED, plan, topology

from sandtable.engine.network import BACKENDS, Planner, plan_collective
from sandtable.errors import TraceError

MACHINES = ("dgx-a100", "dgx-h100", "dgx1-v100", "vtrain-a100", "rtx4090+25gbe", "lab")
WIRES = {machine: topology(machine, nodes=4) for machine in MACHINES}
GROUPS = {
    # by the number of groups and how they lie across the nodes of two GPUs or more
    "one node": lambda wires: [_on(wires, 0)],
    "all nodes": lambda wires: [[rank for node in range(4) for rank in _on(wires, node)]],
    "one a node": lambda wires: [[_on(wires, node)[0] for node in range(4)]],
    "every column": lambda wires: [list(column) for column in zip(*(_on(wires, n) for n in range(4)), strict=True)],
    "uneven": lambda wires: [_on(wires, 0) + _on(wires, 2)[:1]],
}


def _on(wires, node: int) -> list[int]:
    return np.flatnonzero(wires.node_of == node).tolist()


CASES = st.fixed_dictionaries(
    {
        "op": st.sampled_from(sorted(SIZED)),
        "machine": st.sampled_from(MACHINES),
        "groups": st.sampled_from(sorted(GROUPS)),
        "backend": st.sampled_from(BACKENDS),
        "size": st.integers(0, 2**34),
    }
)


def of(case, *, wires=None, size=None):
    chosen = wires or WIRES[case["machine"]]
    groups = GROUPS[case["groups"]](WIRES[case["machine"]])
    return plan(case["op"], case["size"] if size is None else size, groups, chosen, backend=case["backend"])


@given(CASES)
@settings(deadline=None)
def test_no_link_carries_more_than_it_can(case):
    transfer = of(case)
    assert np.isfinite(transfer.total_ns)
    assert transfer.latency_ns >= 0
    assert (transfer.loads >= 0).all()
    # Not only because of the bound in `loads`: what crosses a link fits into the time.
    seconds = transfer.bytes_on_links / transfer.pattern.bandwidth_bytes_per_s
    assert (seconds <= transfer.work_ns * 1e-9 * (1 + 1e-9)).all()


@given(CASES, st.sampled_from(["intra", "inter"]), st.floats(1.0, 50.0))
@settings(deadline=None)
def test_more_bandwidth_is_never_slower(case, where, factor):
    faster = WIRES[case["machine"]].scaled({where: factor})
    assert of(case, wires=faster).total_ns <= of(case).total_ns * (1 + 1e-9)


@given(CASES, st.integers(0, 2**34))
@settings(deadline=None)
def test_more_bytes_are_never_faster(case, more):
    assert of(case, size=case["size"] + more).total_ns >= of(case).total_ns * (1 - 1e-9)


@given(CASES, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_groups_does_not_matter(case, random):
    wires = WIRES[case["machine"]]
    groups = GROUPS[case["groups"]](wires)
    shuffled = random.sample(groups, len(groups))
    first = plan(case["op"], case["size"], groups, wires, backend=case["backend"])
    second = plan(case["op"], case["size"], shuffled, wires, backend=case["backend"])
    assert second.total_ns == pytest.approx(first.total_ns)
    assert second.links.tolist() == first.links.tolist()
    assert second.loads == pytest.approx(first.loads)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_nodes_are_equally_loaded(op, backend):
    wires = topology("dgx-h100", nodes=4)
    forced = "ring" if op == "all_reduce" else None  # the root of a tree sends less than others
    transfer = plan(op, GIB, [range(32)], wires, backend=backend, algorithm=forced)
    for tier in wires.tiers:
        inside = (transfer.links >= tier.first) & (transfer.links < tier.first + tier.num_links)
        if inside.any():
            by_node = transfer.loads[inside].reshape(4, -1)
            assert by_node == pytest.approx(np.broadcast_to(by_node[0], by_node.shape))
            assert backend == "gloo" or by_node == pytest.approx(np.full(by_node.shape, by_node[0, 0]))


@pytest.mark.parametrize("op", sorted(SIZED))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_group_of_one_takes_no_time(op, backend):
    transfer = plan(op, GIB, [[3]], topology(), backend=backend)
    assert transfer.total_ns == 0
    assert len(transfer.links) == len(transfer.loads) == 0


@pytest.mark.parametrize("op", ["send", "recv", "all_reduce_coalesced", ""])
def test_an_operation_that_is_no_collective_is_refused(op):
    with pytest.raises(TraceError, match="plan send and recv with plan_p2p"):
        plan_collective(op, bytes_in=8, bytes_out=8, groups=[[0, 1]], topology=topology())


def test_an_unknown_backend_is_refused():
    with pytest.raises(TraceError, match="must be one of nccl, gloo, but got 'mpi'"):
        Planner(topology(), backend="mpi")


def test_a_root_outside_the_group_is_refused():
    with pytest.raises(TraceError, match="a position in its group of 4, but got 4"):
        plan("broadcast", MIB, [range(4)], topology(), root=4)


def test_a_barrier_costs_about_the_smallest_all_reduce():
    wires = topology("dgx-h100", nodes=2)
    barrier = plan("barrier", 0, [range(16)], wires)
    assert barrier.total_ns == pytest.approx(plan("all_reduce", 4, [range(16)], wires).total_ns, rel=0.01)


def test_larger_messages_keep_more_multiprocessors_busy():
    wires = topology("dgx-a100")
    small = plan("all_reduce", 1024, [range(8)], wires)
    large = plan("all_reduce", GIB, [range(8)], wires)
    assert small.sm_share == pytest.approx(1 / 108)
    assert large.sm_share == pytest.approx(24 / 108)


def test_a_group_with_one_way_out_of_its_nodes_keeps_few_multiprocessors_busy():
    wires = topology("dgx-a100", nodes=4)
    assert plan("all_reduce", GIB, [[0, 8, 16, 24]], wires).sm_share == pytest.approx(2 / 108)
    assert plan("all_reduce", GIB, [range(32)], wires).sm_share == pytest.approx(16 / 108)


def test_a_planner_remembers_links_and_not_sizes():
    planner = Planner(topology("dgx-h100", nodes=2))
    first = planner.collective("all_gather", bytes_in=MIB, bytes_out=16 * MIB, groups=[range(16)])
    again = planner.collective("all_gather", bytes_in=2 * MIB, bytes_out=32 * MIB, groups=[range(16)])
    assert again.pattern is first.pattern
    assert again.bytes_on_links == pytest.approx(2 * first.bytes_on_links)


def test_a_hundred_thousand_gpus_are_planned_in_about_a_second():
    wires = topology("dgx-a100", nodes=12288)
    groups = np.arange(98304).reshape(192, 512).T
    transfer = plan("all_reduce", GIB, groups, wires)
    out = transfer.bytes_on_links.sum()
    assert out > 0
    assert len(transfer.links) > 2 * 98304
