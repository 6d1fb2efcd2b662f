from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.building import SIGNATURES, Script, make_trace

from sandtable.cluster import load
from sandtable.engine import Timeline, WhatIf, simulate
from sandtable.engine.compute import CostModel
from sandtable.errors import SimulationError, WhatIfError
from sandtable.trace import Group, Phase, Trace

MIB = 2**20


def data_parallel(num_ranks: int = 16, *, buckets: tuple[int, ...] = (4 * MIB, 16 * MIB), steps: int = 2) -> Trace:
    """Forward, backward with all-reduces beside it on a stream of their own, and an update."""
    script = Script()
    for _ in range(steps):
        for _ in range(4):
            script.op(2, phase=Phase.FORWARD)
        calls = []
        for size in buckets:
            script.op(2, phase=Phase.BACKWARD)
            script.op(2, phase=Phase.BACKWARD)
            script.record(1)
            script.wait_event(1, stream=128)
            calls.append(script.collective(size, stream=128))
        for call in calls:
            script.wait(call)
        script.op(1, phase=Phase.OPTIMIZER)
        script.step()
    world = Group("world", tuple(range(num_ranks)))
    return make_trace({0: script}, classes={0: list(range(num_ranks))}, groups=(world,))


def pipeline(
    num_stages: int = 4, width: int = 4, micro_batches: int = 6, *, size: int = 8 * MIB, steps: int = 2
) -> Trace:
    """GPipe over `num_stages`, each with `width` ranks that add up activations and, at the end, gradients."""
    world = Group("world", tuple(range(num_stages * width)))
    pp = [Group("mesh_pp", tuple(range(k, num_stages * width, width))) for k in range(width)]
    tp = [Group("mesh_tp", tuple(range(s * width, (s + 1) * width))) for s in range(num_stages)]
    scripts = {}
    for stage in range(num_stages):
        script = Script()
        for _ in range(steps):
            for _ in range(micro_batches):
                if stage:
                    script.wait(script.recv(size, num_stages - 1, group=1, stream=129))
                script.op(2)
                script.collective(size, group=2)
                if stage < num_stages - 1:
                    script.record(1)
                    script.wait_event(1, stream=130)
                    script.send(size, 1, group=1, stream=130)
            script.op(0, phase=Phase.OPTIMIZER)
            script.step()
        scripts[stage * width] = script
    classes = {s * width: list(range(s * width, (s + 1) * width)) for s in range(num_stages)}
    return make_trace(scripts, classes=classes, groups=(world, *pp, *tp))


def cluster_for(trace: Trace, name: str = "dgx-a100"):
    return load(name, nodes=-(-trace.world_size // 8))


def run(trace: Trace, *, name: str = "dgx-a100", folding: bool = True, **what_if) -> Timeline:
    return simulate(trace, cluster_for(trace, name), what_if=WhatIf(**what_if), folding=folding)


def test_equal_ranks_are_one_actor_and_have_equal_times():
    timeline = run(data_parallel(64))
    assert len(timeline.actors) == 1
    assert timeline.actors[0].ranks == tuple(range(64))
    assert timeline.breakdown(0) == timeline.breakdown(63)


@pytest.mark.parametrize("trace", [data_parallel(16), pipeline(), pipeline(2, 8, 3), pipeline(8, 2, 5)])
def test_folding_on_and_off_agree(trace: Trace):
    folded, unfolded = run(trace), run(trace, folding=False)
    assert len(folded.actors) < len(unfolded.actors) == trace.world_size
    assert folded.step_ns == pytest.approx(unfolded.step_ns, abs=2)
    for rank in range(trace.world_size):
        one, other = folded.breakdown(rank), unfolded.breakdown(rank)
        assert one.forward == pytest.approx(other.forward, abs=2)
        assert one.bubble == pytest.approx(other.bubble, rel=1e-6, abs=50)
    loads = folded.link_loads.bytes_carried, unfolded.link_loads.bytes_carried
    assert np.allclose(*loads, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    stages=st.sampled_from([2, 4]),
    width=st.sampled_from([2, 4, 8]),
    micro=st.integers(1, 5),
    size=st.integers(1, 32 * MIB),
    slow=st.dictionaries(st.integers(0, 1), st.floats(0.3, 1.0), max_size=1),
)
def test_folding_agrees_whatever_is_slow(stages, width, micro, size, slow):
    trace = pipeline(stages, width, micro, size=size)
    slow = {node: speed for node, speed in slow.items() if node * 8 < trace.world_size}
    folded, unfolded = run(trace, slow_nodes=slow), run(trace, slow_nodes=slow, folding=False)
    assert folded.step_ns == pytest.approx(unfolded.step_ns, abs=5)


@settings(max_examples=25, deadline=None)
@given(
    factor=st.floats(1.0, 50.0),
    sizes=st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=4),
    where=st.sampled_from(["intra", "inter"]),
)
def test_more_bandwidth_is_never_slower(factor, sizes, where):
    trace = data_parallel(16, buckets=tuple(sizes))
    assert run(trace, link_scale={where: factor}).step_ns <= run(trace).step_ns + 5


@settings(max_examples=15, deadline=None)
@given(factor=st.floats(1.0, 50.0), micro=st.integers(1, 5), size=st.integers(1, 64 * MIB))
def test_a_pipeline_is_never_slower_with_more_bandwidth(factor, micro, size):
    trace = pipeline(4, 4, micro, size=size)
    assert run(trace, link_scale={"inter": factor}).step_ns <= run(trace).step_ns + 5


def test_the_parts_of_the_breakdown_add_up_to_the_step():
    for trace in (data_parallel(16), pipeline()):
        timeline = run(trace)
        for rank in range(trace.world_size):
            assert timeline.breakdown(rank).total == pytest.approx(timeline.step_ns, abs=5)


def test_communication_that_compute_hides_is_not_exposed():
    small = run(data_parallel(16, buckets=(64,))).breakdown(0)
    large = run(data_parallel(16, buckets=(64 * MIB,))).breakdown(0)
    assert sum(small.communication.values()) < 0.2 * sum(large.communication.values())
    assert large.communication["world"] > 0


def test_later_stages_of_a_pipeline_wait_in_a_bubble():
    timeline = run(pipeline(4, 2, 1, steps=1))
    bubbles = [timeline.breakdown(rank).bubble for rank in (0, 2, 4, 6)]
    assert bubbles == sorted(bubbles)
    assert bubbles[-1] > 0


def test_a_slow_node_slows_everybody_and_splits_only_what_it_reaches():
    trace = data_parallel(32)
    fair, slow = run(trace), run(trace, slow_nodes={1: 0.5})
    assert slow.step_ns > 1.5 * fair.step_ns
    assert [actor.ranks for actor in slow.actors] == [(*range(8), *range(16, 32)), tuple(range(8, 16))]
    assert slow.breakdown(0).straggler > 0
    assert slow.breakdown(8).straggler == 0


def test_jitter_follows_its_seed():
    trace = data_parallel(8)
    steps = [run(trace, jitter=0.05, seed=seed).step_ns for seed in (1, 1, 2)]
    assert steps[0] == steps[1] != steps[2]


def test_bytes_on_links_are_the_bytes_sent():
    timeline = run(data_parallel(8, buckets=(16 * MIB,)))
    tier = timeline.topology.tier("gpu")
    assert tier is not None
    carried = timeline.link_loads.bytes_carried[tier.first : tier.first + tier.num_links]
    # a ring all-reduce: every GPU sends and receives 2 (n - 1) / n of the buffer
    assert carried.sum() == pytest.approx(2 * 8 * 2 * 7 / 8 * 16 * MIB, rel=1e-6)
    assert (timeline.link_loads.utilisation <= 1 + 1e-9).all()


def test_a_message_loads_the_links_between_its_ends_alone():
    timeline = run(pipeline(2, 8, 3, size=MIB))
    nic = timeline.topology.tier("nic")
    assert nic is not None
    carried = timeline.link_loads.bytes_carried[nic.first : nic.first + nic.num_links]
    assert carried.sum() == pytest.approx(2 * 8 * 3 * MIB)


def test_spans_lie_within_their_run_and_do_not_overlap_on_a_stream():
    timeline = run(pipeline())
    spans = timeline.spans(5)
    assert {span.category for span in spans} >= {"compute", "communication"}
    for stream in {span.stream for span in spans}:
        mine = [span for span in spans if span.stream == stream]
        assert all(a.end_ns <= b.start_ns + 1 for a, b in pairwise(mine))
    assert str(spans[0].line) == "train.py:7"


def test_transactions_count_the_calls_of_one_step():
    found = {(each.op, each.axis): each.count for each in run(pipeline(4, 4, 6)).transactions(5)}
    assert found == {("recv", "pp"): 6, ("send", "pp"): 6, ("all_reduce", "tp"): 6}


def test_the_work_done_is_that_of_one_step():
    timeline = run(data_parallel(8))
    counts = timeline.operator_counts(0)
    by_phase = {Phase(int(p)): int(c) for p, s, c in zip(counts.phase, counts.signature, counts.count, strict=True)}
    assert by_phase == {Phase.FORWARD: 4, Phase.BACKWARD: 4, Phase.OPTIMIZER: 1}


def test_one_step_is_timed_from_its_first_product():
    once, twice = run(data_parallel(8, steps=1)), run(data_parallel(8, steps=2))
    assert once.step_ns == pytest.approx(twice.step_ns, rel=0.05)


def test_a_collective_with_a_missing_member_is_named_with_its_line():
    scripts = {0: Script(), 1: Script()}
    for script in scripts.values():
        script.op(0)
    scripts[0].collective(1024)
    for script in scripts.values():
        script.step()
    trace = make_trace(scripts, classes={0: [0], 1: [1]}, groups=(Group("world", (0, 1)),))
    with pytest.raises(SimulationError, match=r"rank 0 waits for rank 1 in all_reduce number 0 on world .*train\.py:7"):
        run(trace)


def test_ranks_that_wait_for_each_other_are_named():
    scripts = {0: Script(), 1: Script()}
    for script in scripts.values():
        script.op(0)
        script.send(1024, 1)
        script.recv(1024, 1)
        script.step()
    trace = make_trace(scripts, classes={0: [0], 1: [1]}, groups=(Group("world", (0, 1)),))
    with pytest.raises(SimulationError, match="the run stalls"):
        run(trace)


def test_a_message_that_the_capture_did_not_live_to_see_ends_the_steps_that_are_timed():
    scripts = {0: Script(), 1: Script()}
    for _ in range(2):  # rank 1 ends its one step with the first message, and the capture ends it
        scripts[0].op(0)
        scripts[0].recv(1024, 1)
        scripts[0].step()
    scripts[1].op(0)
    scripts[1].send(1024, 1)
    scripts[1].step()
    timeline = run(make_trace(scripts, classes={0: [0], 1: [1]}, groups=(Group("world", (0, 1)),)))
    assert [len(program.steps) for program in timeline.programs] == [1, 1]
    assert timeline.step_ns > 0


def test_a_run_without_work_has_no_time():
    script = Script()
    script.step()
    trace = make_trace({0: script}, classes={0: [0]}, groups=(Group("world", (0,)),))
    with pytest.raises(SimulationError, match="a step must do some work"):
        _ = run(trace).step_ns


@pytest.mark.parametrize(
    ("what_if", "words"),
    [
        ({"slow_nodes": {99: 0.5}}, "one of the 2 nodes of the run"),
        ({"slow_nodes": {0: 0.0}}, "speed above 0"),
        ({"link_scale": {"inter": -1.0}}, "above 0"),
        ({"jitter": 3.0}, "between 0 and 1"),
    ],
)
def test_impossible_what_ifs_say_what_would_be_possible(what_if, words):
    with pytest.raises(WhatIfError, match=words):
        run(data_parallel(16), **what_if)


def test_a_processor_issues_and_works_in_turn():
    done = [(3, Phase.FORWARD)] * 5 + [(1, Phase.BACKWARD), (3, Phase.BACKWARD)]
    script = Script()
    for _ in range(2):
        for signature, phase in done:
            script.op(signature, phase=phase)
        script.step()
    trace = make_trace({0: script}, classes={0: [0]}, groups=(Group("world", (0,)),), gpus_per_node=1)
    cluster = load("lab", nodes=1)
    model = CostModel(cluster.device)
    costs = [model.cost(SIGNATURES[i]).work_ns + model.host_ns(SIGNATURES[i], phase) for i, phase in done]
    assert simulate(trace, cluster).step_ns == pytest.approx(sum(costs), rel=1e-3)


def test_events_happen_when_what_was_issued_before_them_is_done():
    script = Script()
    script.record(1)
    script.op(2)
    script.record(2)
    script.op(2)
    script.op(2)
    script.record(1)  # an event may be recorded again
    script.step()
    trace = make_trace({0: script}, classes={0: [0]}, groups=(Group("world", (0,)),))
    begin, first, second = simulate(trace, load("dgx-a100", nodes=1)).event_times_ns(0).tolist()
    assert second - first == pytest.approx(2 * (first - begin), rel=0.1)
