"""Ranks that differ in where their shards are cut are one class; ranks that differ otherwise are not."""

import pytest
from tests.vgpu.meshes import mesh_groups, registry_of
from tests.vgpu.sharded import ShardedScript, layer_sizes

from sandtable.vgpu.classes import CapturePlan, Limits, plan
from sandtable.vgpu.shard_work import RankWork, explain
from sandtable.vgpu.sharded_ranks import ShardedRanks, ShardReader


def capture(script: ShardedScript) -> tuple[CapturePlan, dict[int, str]]:
    """Play the launcher: capture what the plan asks for until it is final."""
    registry = registry_of(script.world_size, mesh_groups(dp=script.num_shards, tp=script.tp))
    reader = ShardReader(script.records)
    digests = {0: script.records(0).digest()}
    while True:
        found = plan(
            registry, digests, primaries=[0], stale=frozenset(), gpus_per_node=8, limits=Limits(), shards=reader
        )
        if found.is_final:
            return found, digests
        assert not digests.keys() & set(found.samples), "a captured rank was asked for again"
        digests |= {rank: script.records(rank).digest() for rank in found.samples}


@pytest.mark.parametrize("world_size", [8, 64, 512, 3072])
def test_ranks_that_differ_in_their_cuts_are_one_class_of_the_costliest(world_size):
    script = ShardedScript(world_size, layer_sizes(12))
    found, digests = capture(script)
    ((representative, members),) = found.classes.items()
    assert members == tuple(range(world_size))
    assert len(digests) <= 16
    assert not found.unsure
    assert len(script.pieces(representative)) == max(len(script.pieces(rank)) for rank in range(world_size))
    assert sum(len(ranks.pieces.ranks) for ranks in found.sharded) == world_size


def test_the_cuts_of_captured_ranks_are_not_the_work_of_one_class_without_the_arithmetic():
    script = ShardedScript(512, layer_sizes(12))
    registry = registry_of(512, mesh_groups(dp=512))
    digests = {rank: script.records(rank).digest() for rank in range(0, 512, 32)}
    without = plan(registry, digests, primaries=[0], stale=frozenset(), gpus_per_node=8, limits=Limits())
    assert without.unsure or not without.is_final


def test_a_rank_that_logs_is_a_class_of_its_own():
    script = ShardedScript(512, layer_sizes(12), extra=lambda rank, pieces: int(rank == 0))
    found, _ = capture(script)
    assert sorted(map(len, found.classes.values())) == [1, 511]
    assert found.classes[0] == (0,)
    assert not found.unsure


@pytest.mark.parametrize("logs", [False, True])
def test_vectors_that_only_the_first_of_each_group_counts_follow_from_the_pieces(logs):
    script = ShardedScript(1024, layer_sizes(24), tp=8, extra=lambda rank, pieces: int(logs and rank == 0))
    found, digests = capture(script)
    assert sorted(map(len, found.classes.values())) == ([1, 1023] if logs else [1024])
    assert max(found.classes) % 8 == 0, "a rank that counts most represents the others"
    assert not found.unsure
    assert len(digests) <= 12


def test_work_that_does_not_follow_from_the_pieces_leaves_the_classes_unsure():
    script = ShardedScript(512, layer_sizes(12), extra=lambda rank, pieces: rank * rank % 17)
    found, digests = capture(script)
    assert found.unsure == ((0, 512),)
    assert not found.sharded
    assert len(digests) < 64


def test_sharded_ranks_of_even_cuts_are_nothing_special():
    script = ShardedScript(4, [400, 400, 400, 400])
    work = {0: RankWork.of(script.records(0))}
    registry = registry_of(4, mesh_groups(dp=4))
    assert ShardedRanks.of(registry.positions(0), work, registry) is None


def sharded(script: ShardedScript, ranks: range) -> ShardedRanks:
    registry = registry_of(script.world_size, mesh_groups(dp=script.world_size), ranks=tuple(ranks))
    work = {rank: RankWork.of(script.records(rank)) for rank in ranks}
    found = ShardedRanks.of(registry.positions(0), work, registry)
    assert found is not None
    return found


def test_an_explanation_from_some_ranks_predicts_the_work_of_all_others():
    script = ShardedScript(64, layer_sizes(12))
    some, every = sharded(script, range(50, 64)), sharded(script, range(64))
    assert some.explanation.types == every.explanation.types
    assert some.explanation.costs == pytest.approx(every.explanation.costs)
    assert every.num_kinds == 1


def test_too_few_ranks_explain_nothing():
    script = ShardedScript(64, layer_sizes(12))
    few = sharded(script, range(60, 64))
    assert few.explanation.needs_more
    assert not few.types
    assert few.num_kinds > 1


def test_an_operator_more_on_one_rank_is_not_explained():
    script = ShardedScript(64, layer_sizes(12), extra=lambda rank, pieces: int(rank == 55))
    found = sharded(script, range(48, 64))
    assert found.num_kinds == 2
    assert [rank for rank, digest in found.digests.items() if digest == found.digests[55]] == [55]


def test_counting_the_same_ranks_twice_gives_the_same_types():
    script = ShardedScript(64, layer_sizes(12))
    first, second = (sharded(script, range(48, 64)) for _ in range(2))
    assert explain(first.work, first.pieces).types == explain(second.work, second.pieces).types
