"""The partitioner: brute force, time, memory, bad input."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandtable.errors import PlanError
from sandtable.pipeline_profile import LayerProfile, Profile
from sandtable.planner import Chain, Level, partition

GBIT = 1e9 / 8


def layer(name: str, seconds: float, activation: int, weight: int) -> LayerProfile:
    return LayerProfile(
        name=name, forward_s=seconds / 3, backward_s=seconds * 2 / 3, activation_bytes=activation, weight_bytes=weight
    )


def chain_of(rows) -> Chain:
    return Chain.of(layer(f"l{k}", *row) for k, row in enumerate(rows))


def splits(count: int, machines: int):
    """Yield every way to cut `count` layers into stages on all machines: (start, end, replicas) by stage."""
    for num_stages in range(1, min(count, machines) + 1):
        for cuts in itertools.combinations(range(1, count), num_stages - 1):
            bounds = (0, *cuts, count)
            for bars in itertools.combinations(range(1, machines), num_stages - 1):
                shares = np.diff((0, *bars, machines)).tolist()
                yield [(bounds[k], bounds[k + 1], shares[k]) for k in range(num_stages)]


def slowest(chain: Chain, split, bandwidth: float) -> float:
    """Compute the formula directly."""
    worst = 0.0
    for start, end, replicas in split:
        part = chain.layers[start:end]
        work = sum(each.forward_s + each.backward_s for each in part)
        sync = 4 * (replicas - 1) / replicas * sum(each.weight_bytes for each in part) / bandwidth
        worst = max(worst, max(work, sync) / replicas)
        if start:
            worst = max(worst, 2 * chain.cut_bytes[start - 1] / bandwidth)
    return worst


rows = st.lists(
    st.tuples(st.floats(0.001, 1.0), st.integers(0, 10**8), st.integers(0, 10**8)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=1000, deadline=None)
@given(rows=rows, machines=st.integers(1, 5), gbit=st.sampled_from([1, 10, 100]))
def test_equal_to_brute_force(rows, machines, gbit):
    chain = chain_of(rows)
    found = partition(chain, [Level(machines=machines, bandwidth_bytes_per_s=gbit * GBIT)])
    best = min(slowest(chain, split, gbit * GBIT) for split in splits(len(chain), machines))
    assert found.seconds_per_minibatch == pytest.approx(best, rel=1e-12)
    chosen = [(stage.first, stage.last + 1, stage.replicas) for stage in found.stages]
    assert slowest(chain, chosen, gbit * GBIT) == pytest.approx(best, rel=1e-12)
    assert found.machines == machines
    assert chosen[0][0] == 0
    assert chosen[-1][1] == len(chain)


@settings(max_examples=100, deadline=None)
@given(rows=rows, machines=st.integers(1, 4), room=st.floats(1e6, 1e9))
def test_memory_is_respected_as_brute_force_respects_it(rows, machines, room):
    chain = chain_of(rows)

    def fits(split) -> bool:
        for k, (start, end, replicas) in enumerate(split):
            behind = sum(share for _, _, share in split[k + 1 :])
            versions = -(-(replicas + behind) // replicas)
            weights = sum(each.weight_bytes for each in chain.layers[start:end])
            kept = weights + sum(each.activation_bytes for each in chain.layers[start:end])
            if versions * kept + weights > room:
                return False
        return True

    allowed = [split for split in splits(len(chain), machines) if fits(split)]
    levels = [Level(machines=machines, bandwidth_bytes_per_s=10 * GBIT)]
    if not allowed:
        with pytest.raises(PlanError, match="must fit into the memory of a device"):
            partition(chain, levels, memory_bytes=room)
        return
    found = partition(chain, levels, memory_bytes=room)
    assert found.seconds_per_minibatch == pytest.approx(min(slowest(chain, s, 10 * GBIT) for s in allowed), rel=1e-12)
    assert fits([(stage.first, stage.last + 1, stage.replicas) for stage in found.stages])


def test_devices_of_a_machine_leave_room_for_what_is_under_way_behind_it():
    """Two machines of two devices in one row of four stages: the first device has four minibatches in flight."""
    chain = chain_of([(1.0, 10, 100)] * 4)
    levels = [Level(machines=2, bandwidth_bytes_per_s=100.0), Level(machines=2, bandwidth_bytes_per_s=100.0)]
    straight = partition(chain, levels, memory_bytes=4 * 110 + 100)
    assert straight.name == "1-1"
    assert [stage.inside.name for stage in straight.stages if stage.inside] == ["1-1", "1-1"]
    assert straight.in_flight == straight.versions(0) == 4
    assert straight.versions(1) == 2
    # With a byte less two devices share the first layer and keep two versions each; the last device has two layers.
    tight = partition(chain, levels, memory_bytes=4 * 110 + 99)
    assert [stage.inside.name for stage in tight.stages if stage.inside] == ["2", "1-1"]
    assert (tight.in_flight, tight.seconds_per_minibatch) == (2, 2.0)
    with pytest.raises(PlanError, match=r"memory of a device \(419 bytes\), but no split over 4 devices does"):
        partition(chain, levels, memory_bytes=220 + 199)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(0, 1.0), st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=4),
    machines=st.lists(st.integers(1, 2), min_size=2, max_size=3),
    bandwidths=st.lists(st.sampled_from([100.0, 1e3, 1e5]), min_size=3, max_size=3),
    room=st.one_of(st.none(), st.integers(0, 1500)),
)
def test_levels_and_memory_together_equal_brute_force(rows, machines, bandwidths, room):
    chain = chain_of(rows)
    levels = [
        Level(machines=count, bandwidth_bytes_per_s=rate) for count, rate in zip(machines, bandwidths, strict=False)
    ]

    def best(depth: int, layers: range, copies: int, behind: int) -> float:
        """Return the seconds of `layers` on `copies` sets of devices, with `behind` devices after them."""
        part = chain.layers[layers.start : layers.stop]
        weights = sum(each.weight_bytes for each in part)
        if depth == 0:
            versions = -(-(copies + behind) // copies)
            kept = weights + sum(each.activation_bytes for each in part)
            fits = room is None or versions * kept + weights <= room
            return sum(each.seconds for each in part) if fits else float("inf")
        level, devices = levels[depth - 1], int(np.prod(machines[: depth - 1]))
        found = float("inf")
        for split in splits(len(layers), level.machines):
            worst, left = 0.0, level.machines
            for start, end, replicas in split:
                left -= replicas
                span = range(layers.start + start, layers.start + end)
                single = best(depth - 1, span, copies * replicas, behind + copies * left * devices)
                moved = sum(each.weight_bytes for each in chain.layers[span.start : span.stop])
                sync = 4 * (replicas - 1) / replicas * moved / level.bandwidth_bytes_per_s
                crossing = 2 * chain.cut_bytes[span.start - 1] / level.bandwidth_bytes_per_s if start else 0.0
                worst = max(worst, max(single, sync) / replicas, crossing)
            found = min(found, worst)
        return found

    wanted = best(len(levels), range(len(chain)), 1, 0)
    if wanted == float("inf"):
        with pytest.raises(PlanError, match="must fit into the memory of a device"):
            partition(chain, levels, memory_bytes=room)
    else:
        found = partition(chain, levels, memory_bytes=room)
        assert found.seconds_per_minibatch == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_pipelines_inside_machines_are_not_called_plain_data_parallelism():
    heavy = chain_of([(0.1, 1, 10**9), (0.1, 1, 10**9)])
    found = partition(
        heavy, [Level(machines=2, bandwidth_bytes_per_s=1e9), Level(machines=2, bandwidth_bytes_per_s=1e15)]
    )
    assert (found.name, [stage.inside.name for stage in found.stages if stage.inside]) == ("2", ["1-1"])
    assert not found.is_data_parallel
    assert found.in_flight == 2
    # Plain: 2e9 bytes of weights among the devices of a machine, at 4 * 1/2 of them, by 2 devices and 2 machines.
    assert found.data_parallel_seconds == pytest.approx(4 * 0.5 * 2e9 / 1e9 / 2 / 2)


def test_a_level_of_one_machine_changes_nothing():
    chain = chain_of([(0.1, 10**6, 10**7), (0.3, 10**7, 10**6), (0.2, 10**5, 10**8)])
    flat = partition(chain, [Level(machines=4, bandwidth_bytes_per_s=GBIT)])
    outer = partition(
        chain, [Level(machines=1, bandwidth_bytes_per_s=GBIT), Level(machines=4, bandwidth_bytes_per_s=GBIT)]
    )
    inner = partition(
        chain, [Level(machines=4, bandwidth_bytes_per_s=GBIT), Level(machines=1, bandwidth_bytes_per_s=GBIT)]
    )
    assert flat.seconds_per_minibatch == outer.seconds_per_minibatch == inner.seconds_per_minibatch
    assert inner.stages[0].inside is not None
    assert inner.stages[0].inside.name == flat.name == outer.name


def test_fast_links_inside_a_machine_are_used_for_what_slow_ones_cannot_carry():
    heavy = chain_of([(0.1, 10**3, 10**9), (0.1, 10**3, 10**9)])  # all weights, hardly any activations
    found = partition(
        heavy, [Level(machines=4, bandwidth_bytes_per_s=100 * GBIT), Level(machines=2, bandwidth_bytes_per_s=GBIT)]
    )
    assert found.name == "1-1"
    assert [stage.inside.name for stage in found.stages if stage.inside] == ["4", "4"]


def test_what_is_said_of_a_pipeline():
    chain = chain_of([(0.6, 10**6, 10**6), (0.1, 10**6, 10**9)])
    found = partition(chain, [Level(machines=7, bandwidth_bytes_per_s=10 * GBIT)])
    assert found.name == "6-1"
    assert found.in_flight == 2
    assert [found.versions(k) for k in range(2)] == [2, 1]
    assert found.seconds_per_minibatch == pytest.approx(0.1)
    assert found.minibatches_per_s == pytest.approx(10)
    assert found.bytes_per_minibatch == pytest.approx(2 * 10**6 + 2 * 5 / 6 * 10**6)
    assert found.data_parallel_bytes == pytest.approx(2 * 6 / 7 * (10**9 + 10**6))
    assert not found.is_data_parallel


def test_a_thousand_layers_on_64_machines_take_seconds():
    numbers = np.random.default_rng(0)
    chain = chain_of(
        zip(
            numbers.random(1000).tolist(),
            numbers.integers(0, 10**6, 1000).tolist(),
            numbers.integers(0, 10**7, 1000).tolist(),
            strict=True,
        )
    )
    start = time.process_time()
    found = partition(chain, [Level(machines=64, bandwidth_bytes_per_s=10 * GBIT)])
    assert time.process_time() - start < 10
    assert found.machines == 64


def test_a_larger_minibatch_takes_longer_and_sends_more_but_has_the_same_weights():
    chain = chain_of([(0.1, 10**6, 10**7), (0.3, 3, 10**6)])
    larger = chain.scaled(2)
    assert larger.seconds == pytest.approx(2 * chain.seconds)
    assert larger.cut_bytes == (2 * 10**6, 0)
    assert [layer.activation_bytes for layer in larger.layers] == [2 * 10**6, 6]
    assert larger.weight_bytes == chain.weight_bytes
    for factor in (0, -1, float("nan"), float("inf")):
        with pytest.raises(PlanError, match="more than 0 times the profiled one"):
            chain.scaled(factor)


def graph(layers: list[LayerProfile], edges: list[tuple[str, str]]) -> Chain:
    return Chain.of_profile(Profile(layers=tuple(layers), edges=tuple(edges)))


def test_graphs_become_chains_by_what_crosses():
    diamond = [layer(name, 1.0, size, 0) for name, size in (("a", 5), ("b", 7), ("c", 11), ("d", 13))]
    chain = graph(diamond, [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    assert [each.name for each in chain.layers] == ["a", "b", "c", "d"]
    assert chain.cut_bytes == (5, 5 + 7, 7 + 11, 0)


def test_bad_input_is_refused_with_the_rule():
    with pytest.raises(PlanError, match="at least one layer"):
        Chain.of([])
    with pytest.raises(PlanError, match="in a circle"):
        graph([layer("a", 1, 1, 1), layer("b", 1, 1, 1)], [("a", "b"), ("b", "a")])
    with pytest.raises(PlanError, match="no layer 'x'"):
        graph([layer("a", 1, 1, 1)], [("a", "x")])
    with pytest.raises(PlanError, match="its own name"):
        graph([layer("a", 1, 1, 1), layer("a", 1, 1, 1)], [])
    with pytest.raises(PlanError, match="0 or more, but layer 'a' has -1"):
        layer("a", 1, -1, 1)
    with pytest.raises(PlanError, match="at least one machine, but got 0"):
        Level(machines=0, bandwidth_bytes_per_s=1)
    with pytest.raises(PlanError, match="more than 0 bytes per second"):
        Level(machines=1, bandwidth_bytes_per_s=0)
    with pytest.raises(PlanError, match="no level was given"):
        partition(chain_of([(1, 1, 1)]), [])
