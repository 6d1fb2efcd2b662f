"""Which ranks are captured, and that the resulting classes are the true ones."""

import time
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vgpu.meshes import mesh_groups, registry_of

from sandtable.vgpu.classes import CapturePlan, Limits, by_digest, component_labels, plan, stand_ins
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.protocol import GroupsMade

GPUS_PER_NODE = 8


def capture(
    registry: GroupRegistry,
    primaries: Iterable[int],
    work: Callable[[int], str],
    *,
    gpus_per_node: int = GPUS_PER_NODE,
    limits: Limits | None = None,
) -> tuple[CapturePlan, set[int]]:
    """Plays the launcher: captures what the plan asks for until it is final."""
    started = set(primaries)
    digests = {rank: work(rank) for rank in started}
    for _ in range(200):
        found = plan(
            registry,
            digests,
            primaries=started,
            stale=frozenset(),
            gpus_per_node=gpus_per_node,
            limits=limits or Limits(),
        )
        if found.is_final:
            return found, set(digests)
        assert not set(found.samples) & set(digests), "a captured rank was asked for again"
        started |= set(found.primaries)
        digests |= {rank: work(rank) for rank in (*found.primaries, *found.samples)}
    raise AssertionError("the plan never became final")


def truth(world_size: int, work: Callable[[int], str]) -> set[tuple[int, ...]]:
    return set(by_digest({rank: work(rank) for rank in range(world_size)}).values())


def test_ranks_of_a_data_parallel_run_are_one_class_checked_by_one_sample():
    registry = registry_of(16, mesh_groups(dp=16))
    found, captured = capture(registry, [0], lambda rank: "same")
    assert found.classes == {0: tuple(range(16))}
    assert captured == {0, 15}


def test_a_single_rank_needs_no_sample():
    found, captured = capture(registry_of(1, mesh_groups()), [0], lambda rank: "same")
    assert found.classes == {0: (0,)}
    assert captured == {0}


def test_a_script_without_any_group_is_one_class():
    found, captured = capture(GroupRegistry(8), [0], lambda rank: "same")
    assert found.classes == {0: tuple(range(8))}
    assert captured == {0, 7}


def test_each_pipeline_stage_is_a_class_of_its_own():
    registry = registry_of(64, mesh_groups(pp=4, dp=4, tp=4))
    found, captured = capture(registry, range(0, 64, 16), lambda rank: f"stage {rank // 16}")
    assert set(found.classes.values()) == {tuple(range(s, s + 16)) for s in range(0, 64, 16)}
    assert len(captured) == 8


def test_of_many_stages_that_are_all_alike_some_are_sampled():
    registry = registry_of(512, mesh_groups(pp=64, dp=4, tp=2))
    found, captured = capture(registry, range(0, 512, 8), lambda rank: f"stage {rank // 8}")
    assert set(found.classes.values()) == {tuple(range(s, s + 8)) for s in range(0, 512, 8)}
    assert len(captured) == 64 + 6
    assert {7, 511} <= captured, "the first stage and the last are among them"


def test_a_rank_that_logs_in_the_last_stage_does_not_have_all_stages_sampled():
    registry = registry_of(512, mesh_groups(pp=64, dp=4, tp=2))

    def work(rank: int) -> str:
        return f"stage {rank // 8} {rank == 511}"

    found, captured = capture(registry, range(0, 512, 8), work)
    assert set(found.classes.values()) == truth(512, work)
    assert len(captured) < 64 + 16 + 16


def test_all_stages_are_sampled_when_they_are_not_what_they_seemed():
    registry = registry_of(512, mesh_groups(pp=64, dp=4, tp=2))

    def work(rank: int) -> str:
        return f"stage {rank // 8} {rank % 8 == 7}"

    found, captured = capture(registry, range(0, 512, 8), work)
    assert set(found.classes.values()) == truth(512, work)
    assert len(captured) >= 128


@pytest.mark.parametrize("ring_size", [4, 8])
def test_what_decides_at_one_ring_position_is_the_first_suspect_at_the_others(ring_size):
    # Context parallelism: each stage has several ring positions, and at both ends of the pipeline the first rank of
    # each tensor-parallel group loads tokens.
    per_stage = 8 * ring_size * 8
    registry = registry_of(4 * per_stage, mesh_groups(pp=4, dp=8, cp=ring_size, tp=8))

    def work(rank: int) -> str:
        stage, ring = rank // per_stage, rank // 8 % ring_size
        return f"stage {stage} ring {ring} {rank % 8 == 0 and stage in (0, 3)}"

    primaries = [stage * per_stage + ring * 8 for stage in range(4) for ring in range(ring_size)]
    found, captured = capture(registry, primaries, work)
    assert set(found.classes.values()) == truth(4 * per_stage, work)
    num_ends = 2 * ring_size
    assert len(captured) <= len(primaries) + 6 + 3 * num_ends + 4, "two questions at both ends, and then confirmations"


def test_stages_of_equal_work_become_one_class():
    registry = registry_of(64, mesh_groups(pp=4, dp=4, tp=4))
    found, _ = capture(registry, range(0, 64, 16), lambda rank: str(min(1, rank // 16)))
    assert {rank: len(members) for rank, members in found.classes.items()} == {0: 16, 16: 48}


def test_primaries_joined_by_an_embedding_group_stay_apart():
    groups = mesh_groups(pp=4, dp=2, tp=2)
    groups += [("embedding", (rank, rank + 12)) for rank in range(4)]
    labels = component_labels(registry_of(16, groups), [0, 4, 8, 12])
    assert labels.tolist() == [stage * 4 for stage in range(4) for _ in range(4)]


def test_irregular_groups_are_told_apart_by_their_place():
    # Pipelines (0, 5, 3), (1, 2, 4), data parallel groups across them: no two are shifts of each other.
    groups = [("world", tuple(range(6))), ("pp", (0, 5, 3)), ("pp", (1, 2, 4))]
    groups += [("dp", (0, 1)), ("dp", (5, 2)), ("dp", (3, 4))]
    labels = component_labels(registry_of(6, groups), [0, 5, 3]).tolist()
    assert labels == [0, 0, 2, 3, 3, 2]


LOGGING: dict[str, Callable[[int], bool]] = {
    "rank 0": lambda rank: rank == 0,
    "the last rank": lambda rank: rank == 63,
    "local rank 0": lambda rank: rank % 8 == 0,
    "the last local rank": lambda rank: rank % 8 == 7,
    "node 0": lambda rank: rank < 8,
    "tp position 0": lambda rank: rank % 4 == 0,
    "dp position 0": lambda rank: rank // 4 % 4 == 0,
    "the last dp position": lambda rank: rank // 4 % 4 == 3,
    "the last two dp positions": lambda rank: rank // 4 % 4 >= 2,
    "the first of the last stage": lambda rank: rank == 48,
    "the first of every stage": lambda rank: rank % 16 == 0,
}


@pytest.mark.parametrize("name", LOGGING)
def test_ranks_that_do_more_than_their_class_are_found(name):
    def work(rank: int) -> str:
        return f"{rank // 16} {LOGGING[name](rank)}"

    registry = registry_of(64, mesh_groups(pp=4, dp=4, tp=4))
    found, captured = capture(registry, range(0, 64, 16), work)
    assert set(found.classes.values()) == truth(64, work)
    assert len(captured) <= 34


def test_a_logging_rank_costs_few_captures_among_thousands():
    registry = registry_of(3072, mesh_groups(pp=16, dp=24, tp=8))
    found, captured = capture(registry, range(0, 3072, 192), lambda rank: f"{rank // 192} {rank == 0}")
    assert found.classes[0] == (0,)
    assert len(found.classes) == 17
    assert len(captured) <= 37


@pytest.mark.parametrize("bound", [1, 2, 5, 11, 21, 23])
def test_uneven_shards_are_found_by_bisection(bound):
    registry = registry_of(24 * 8, mesh_groups(dp=24, tp=8))
    found, captured = capture(registry, [0], lambda rank: str(rank // 8 >= bound))
    assert set(found.classes.values()) == truth(192, lambda rank: str(rank // 8 >= bound))
    assert len(captured) <= 12


def test_two_reasons_at_once_are_told_apart():
    def work(rank: int) -> str:
        return f"{rank == 0} {rank // 4 == 7}"

    found, _ = capture(registry_of(32, mesh_groups(dp=8, tp=4)), [0], work)
    assert set(found.classes.values()) == truth(32, work)


@pytest.mark.parametrize("logs", [set(), {0}, {0, 255}], ids=["none", "first", "both"])
def test_ranks_that_differ_by_their_position_in_a_group_are_found_with_one_capture_each(logs):
    def work(rank: int) -> str:  # 16 ranks share the experts of a mixture
        return f"{rank % 16} {rank in logs}"

    found, captured = capture(registry_of(256, mesh_groups(dp=16, tp=16)), [0], work)
    assert set(found.classes.values()) == truth(256, work)
    assert len(captured) <= 16 + 6
    assert not found.unsure


def test_captured_ranks_keep_their_own_class_when_no_property_explains_them():
    odd = {3, 5, 6, 10, 12, 15}
    found, captured = capture(registry_of(16, mesh_groups(dp=16)), [0], lambda rank: str(rank in odd))
    for rank in captured:
        (members,) = [members for members in found.classes.values() if rank in members]
        assert {odd.__contains__(other) for other in set(members) & captured} == {rank in odd}


def test_ranks_with_groups_of_other_sizes_are_sampled_too():
    # Five ranks in groups of three and two: the first sample, rank 4, must not speak for the larger groups alone.
    groups = [("world", tuple(range(5))), ("dp", (0, 1, 2)), ("dp", (3, 4))]
    found, _ = capture(registry_of(5, groups), [0], lambda rank: str(rank < 3), gpus_per_node=5)
    assert set(found.classes.values()) == {(0, 1, 2), (3, 4)}


def test_a_rank_that_nothing_connects_to_a_primary_is_started_as_one():
    registry = GroupRegistry(8)
    groups = [("world", tuple(range(8))), ("a", (0, 1)), ("b", (2, 3)), ("c", (4, 5, 6, 7))]
    registry.announce(0, GroupsMade.of(groups))
    found, captured = capture(registry, [0, 2], lambda rank: str(rank // 2))
    assert 4 in captured
    assert set(found.classes.values()) == truth(8, lambda rank: str(rank // 2))


def test_primaries_are_bounded_and_the_rest_is_judged_by_its_properties():
    registry = registry_of(256, [("world", tuple(range(256)))])
    found, captured = capture(registry, [0, 1], lambda rank: str(rank == 0), limits=Limits(max_primaries=16))
    assert set(found.classes.values()) == {(0,), tuple(range(1, 256))}
    assert len(captured) <= 24


def test_a_stale_rank_is_confirmed_by_a_sample_and_runs_again_only_if_they_differ():
    registry = registry_of(4, mesh_groups(dp=4))

    def ask(digests: dict[int, str]) -> CapturePlan:
        return plan(registry, digests, primaries=[0], stale={0}, gpus_per_node=8, limits=Limits())

    assert ask({0: "a"}).samples == (3,)
    assert ask({0: "a", 3: "a"}).classes == {0: (0, 1, 2, 3)}
    assert ask({0: "a", 3: "b"}).again == (0,)


def test_a_stale_rank_that_is_alone_in_its_class_runs_again():
    registry = registry_of(2, mesh_groups(pp=2))
    found = plan(registry, {0: "a", 1: "b"}, primaries=[0, 1], stale={0}, gpus_per_node=8, limits=Limits())
    assert found.again == (0,)


def test_stand_ins_are_the_primaries_of_the_component():
    registry = registry_of(16, mesh_groups(pp=4, dp=2, tp=2))
    assert stand_ins(registry, [0, 4, 8, 12]).tolist() == [stage * 4 for stage in range(4) for _ in range(4)]


def test_stand_ins_follow_the_position_before_every_stage_runs():
    registry = registry_of(16, mesh_groups(pp=4, dp=2, tp=2))
    chosen = stand_ins(registry, [0, 4]).tolist()
    assert chosen[:8] == [0] * 4 + [4] * 4
    assert set(chosen) == {0, 4}


def test_chains_of_overlapping_groups_are_joined_quickly():
    world = 4096
    groups = [("world", tuple(range(world)))] + [("pair", (r, r + 1)) for r in range(2, world - 1)]
    registry = registry_of(world, groups)
    start = time.process_time()
    labels = component_labels(registry, [0, 1])
    assert time.process_time() - start < 1.0
    assert set(labels[2:].tolist()) == {2}


def test_twelve_thousand_ranks_are_planned_in_a_fraction_of_a_second():
    groups = mesh_groups(pp=16, dp=96, tp=8)
    primaries = range(0, 12288, 768)
    start = time.process_time()
    registry = GroupRegistry(12288)
    chunk = GroupsMade.of(groups)
    for rank in primaries:
        registry.announce(rank, chunk)
        stand_ins(registry, range(0, rank + 1, 768))
    _, captured = capture(registry, primaries, lambda rank: f"{rank // 768} {rank == 0}")
    assert time.process_time() - start < 1.5
    assert len(captured) <= 38


axes = st.integers(1, 4)


@settings(deadline=None, max_examples=60)
@given(pp=axes, dp=axes, tp=axes, per_node=st.sampled_from([1, 2, 4, 8]), data=st.data())
def test_classes_are_right_for_every_mesh_and_simple_reason(pp, dp, tp, per_node, data):
    world, stage = pp * dp * tp, dp * tp
    reasons: dict[str, Callable[[int], bool]] = {
        "none": lambda rank: False,
        "first": lambda rank: rank == 0,
        "last": lambda rank: rank == world - 1,
        "local": lambda rank: rank % per_node == 0,
        "tp": lambda rank: rank % tp == 0,
        "dp": lambda rank: rank // tp % dp == dp - 1,
    }
    reason = reasons[data.draw(st.sampled_from(sorted(reasons)))]

    def work(rank: int) -> str:
        return f"{rank // stage} {reason(rank)}"

    found, captured = capture(
        registry_of(world, mesh_groups(pp=pp, dp=dp, tp=tp)), range(0, world, stage), work, gpus_per_node=per_node
    )
    assert set(found.classes.values()) == truth(world, work)
    assert set(found.classes) <= captured


@settings(deadline=None, max_examples=60)
@given(
    world=st.integers(2, 12),
    cuts=st.lists(st.sets(st.integers(0, 11), min_size=2), max_size=6),
    digests=st.lists(st.sampled_from("ab"), min_size=12, max_size=12),
    primaries=st.sets(st.integers(0, 11), min_size=1),
)
def test_any_groups_and_any_work_end_in_a_partition(world, cuts, digests, primaries):
    groups = [("world", tuple(range(world)))]
    groups += [("some", tuple(sorted(r for r in cut if r < world))) for cut in cuts]
    groups = [(name, ranks) for name, ranks in groups if ranks]
    started = {rank for rank in primaries if rank < world} or {0}
    found, captured = capture(registry_of(world, groups), started, lambda rank: digests[rank])
    assert sorted(rank for members in found.classes.values() for rank in members) == list(range(world))
    for representative, members in found.classes.items():
        assert representative in captured
        assert {digests[rank] for rank in members if rank in captured} == {digests[representative]}
