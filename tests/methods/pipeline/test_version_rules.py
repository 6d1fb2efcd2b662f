"""The order of passes never deadlocks, whatever the replicas, and versions exist when they are needed."""

from collections import deque
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandtable.errors import MethodError
from sandtable.methods.pipeline import PipeDream2BW, StageLayout
from sandtable.methods.pipeline.version_rules import Stashing, TwoVersions, VersionRule, VerticalSync

_REPLICAS = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)


def layout_of(replicas):
    return StageLayout.of(num_stages=len(replicas), num_ranks=sum(replicas), replicas=replicas, is_interleaved=False)


class World:
    """Ranks run their passes in order, each as soon as its inputs exist; all replicas together make a version."""

    def __init__(self, rule: VersionRule, num: int) -> None:
        self.rule, self.layout, self.num = rule, rule.layout, num
        self.done: set[tuple[str, int, int]] = set()
        self.most_held: dict[int, int] = dict.fromkeys(range(self.layout.num_ranks), 1)

    def order(self, rank: int) -> "deque[tuple[str, int, int]]":
        stage = self.layout.seat(rank)[0]
        own = [each for each in range(self.num) if self.layout.rank_for(stage, each) == rank]
        width, found = self.layout.in_flight(stage), list[tuple[str, int, int]]()
        for index, minibatch in enumerate(own):
            found.append(("F", stage, minibatch))
            if index >= width - 1:
                found.append(("B", stage, own[index - width + 1]))
        found += [("B", stage, minibatch) for minibatch in own[max(0, len(own) - width + 1) :]]
        return deque(found)

    def updates(self, stage: int) -> int:
        """Return how many updates have all their gradients."""
        size, count = self.rule.per_update(stage), 0
        while all(("B", stage, each) in self.done for each in range(count * size, min((count + 1) * size, self.num))):
            if count * size >= self.num:
                break
            count += 1
        return count

    def is_ready(self, kind: str, stage: int, minibatch: int, mine: list[tuple[str, int, int]]) -> bool:
        # An update is waited for by every rank of the stage after its last backward pass for it, or for the one after.
        size, stride = self.rule.per_update(stage), len(self.layout.ranks(stage))
        finished = [each for kind, _, each in mine if kind == "B" and (each + stride) // size > each // size]
        if finished and self.updates(stage) <= max(finished) // size - self.rule.delay(stage):
            return False
        if kind == "F" and self.updates(stage) < self.rule.version(stage, minibatch):
            return False
        if kind == "F":
            return stage == 0 or ("F", stage - 1, minibatch) in self.done
        return stage == self.layout.num_stages - 1 or ("B", stage + 1, minibatch) in self.done

    def run(self) -> None:
        orders = {rank: self.order(rank) for rank in range(self.layout.num_ranks)}
        past: dict[int, list[tuple[str, int, int]]] = {rank: [] for rank in orders}
        while any(orders.values()):
            moved = False
            for rank, order in orders.items():
                while order and self.is_ready(*order[0], past[rank]):
                    each = order.popleft()
                    self.note(rank, each, past[rank])
                    past[rank].append(each)
                    self.done.add(each)
                    moved = True
            assert moved, f"{self.layout.replicas} deadlock with {self.rule}"

    def note(self, rank: int, each: tuple[str, int, int], mine: list[tuple[str, int, int]]) -> None:
        kind, stage, minibatch = each
        if kind != "F":
            return
        needed = self.rule.version(stage, minibatch)
        assert needed <= self.updates(stage), f"minibatch {minibatch} needs version {needed} of stage {stage}"
        size, stride = self.rule.per_update(stage), len(self.layout.ranks(stage))
        ended = [number for kind, _, number in mine if kind == "B" and (number + stride) // size > number // size]
        latest = max(needed, len(ended) - self.rule.delay(stage))
        back = {number for kind, _, number in mine if kind == "B"}
        under_way = [number for kind, _, number in mine if kind == "F" and number not in back]
        used = {self.rule.version(stage, number) for number in [*under_way, minibatch]}
        self.most_held[rank] = max(self.most_held[rank], len(used | set(range(needed, latest + 1))))


@settings(max_examples=60, deadline=None)
@given(_REPLICAS, st.integers(1, 40), st.booleans())
def test_every_order_ends_and_no_rank_holds_more_versions_than_the_formula_says(replicas, num, vertical):
    layout = layout_of(replicas)
    rule = VerticalSync(layout) if vertical else Stashing(layout)
    world = World(rule, num)
    world.run()
    for rank, held in world.most_held.items():
        assert held <= rule.versions_held(layout.seat(rank)[0])


@settings(max_examples=60, deadline=None)
@given(_REPLICAS, st.integers(1, 5), st.integers(1, 12))
def test_two_versions_are_enough_for_every_size_that_is_allowed(replicas, num, factor):
    layout = layout_of(replicas)
    size = factor
    try:
        PipeDream2BW(size).check(layout)
    except MethodError:
        size = ceil(2 * sum(replicas) / 12) * 12  # a multiple of 1, 2, 3 and 4, and large enough
        PipeDream2BW(size).check(layout)
    world = World(TwoVersions(layout, size), num * size)
    world.run()
    assert max(world.most_held.values()) <= 2


@given(_REPLICAS)
def test_the_input_stage_admits_as_many_minibatches_as_the_paper_says(replicas):
    assert layout_of(replicas).in_flight(0) == ceil(sum(replicas) / replicas[0])


@given(st.integers(1, 6))
def test_without_replicas_stage_k_of_n_is_n_minus_k_updates_behind(num_stages):
    layout = layout_of((1,) * num_stages)
    for stage in range(num_stages):
        staleness = num_stages - 1 - stage
        assert Stashing(layout).version(stage, 20) == 20 - staleness
        assert Stashing(layout).versions_held(stage) == staleness + 1
        assert VerticalSync(layout).version(stage, 20) == 20 - num_stages + 1
        assert VerticalSync(layout).versions_held(stage) == num_stages


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, 2, None, False), "3 stages on 2 ranks"),
        ((0, 2, None, False), "at least one stage, but got none"),
        ((2, 4, 2, False), r"try replicas=\(2, 2\)"),
        ((2, 4, None, False), r"try replicas=\(3, 1\)"),
        ((2, 4, (2, 1), False), "add up to 3"),
        ((2, 4, (4,), False), "each of the 2 stages"),
        ((2, 4, (4, 0), False), "at least one rank"),
        ((4, 3, None, True), "each of the 3 places must have the same number of interleaved stages"),
    ],
)
def test_layouts_that_cannot_be_are_refused_with_the_remedy(arguments, words):
    num_stages, num_ranks, replicas, is_interleaved = arguments
    with pytest.raises(MethodError, match=words):
        StageLayout.of(num_stages=num_stages, num_ranks=num_ranks, replicas=replicas, is_interleaved=is_interleaved)
