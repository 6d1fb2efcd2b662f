"""The plan: every element on exactly one shard, shards equally large, few parameters cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sandtable.errors import MethodError
from sandtable.methods.server import ShardPlan


def model_of(sizes, dtype=torch.float32):
    model = nn.Module()
    for index, size in enumerate(sizes):
        model.register_parameter(f"p{index}", nn.Parameter(torch.zeros(size, dtype=dtype)))
    return model


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12), st.integers(1, 7))
def test_every_element_is_on_one_shard_and_shards_are_balanced(sizes, num_shards):
    total = sum(sizes)
    if total < num_shards:
        return
    plan = ShardPlan.make(model_of(sizes), num_shards=num_shards)
    seen = [
        (parameter_slice.name, element)
        for parts in plan.shards
        for part in parts
        for parameter_slice in part.slices
        for element in (parameter_slice.start, parameter_slice.stop)
    ]
    borders = [part.stop for parts in plan.shards for part in parts]
    assert borders[-1] == total
    assert sorted(borders) == borders
    assert len({name for name, _ in seen}) == len(sizes)
    for parts in plan.shards:
        held = sum(part.num_bytes for part in parts)
        assert (
            sum(parameter_slice.stop - parameter_slice.start for part in parts for parameter_slice in part.slices) * 4
            == held
        )
        assert abs(held - total * 4 / num_shards) <= 4 * (2 * total / num_shards / 64 + 1)
    whole = [parameter_slice for parts in plan.shards for part in parts for parameter_slice in part.slices]
    assert len(whole) <= len(sizes) + num_shards - 1


def test_a_mark_near_a_border_cuts_nothing():
    plan = ShardPlan.make(model_of([1000, 10, 1000]), num_shards=2)
    assert [[parameter_slice.name for part in parts for parameter_slice in part.slices] for parts in plan.shards] == [
        ["p0"],
        ["p1", "p2"],
    ]


def test_a_large_parameter_is_cut_into_one_dimensional_pieces():
    model = nn.Linear(100, 10, bias=False)
    plan = ShardPlan.make(model, num_shards=2)
    assert [part.slices[0].shape for (part,) in plan.shards] == [(500,), (500,)]


def test_without_cutting_parameters_keep_their_shape():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 9))
    plan = ShardPlan.make(model, num_shards=2, cut=False)
    shapes = [parameter_slice.shape for parts in plan.shards for part in parts for parameter_slice in part.slices]
    assert shapes == [(10, 10), (10,), (9, 10), (9,)]


def test_without_cutting_a_shard_may_not_be_empty():
    with pytest.raises(MethodError, match=r"shard \d of 3 would be empty .* use fewer shards or allow cutting"):
        ShardPlan.make(model_of([1000, 10]), num_shards=3, cut=False)


def test_each_dtype_is_shared_out():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10).double(), nn.Linear(10, 10).bfloat16())
    plan = ShardPlan.make(model, num_shards=2)
    assert [[part.dtype for part in parts] for parts in plan.shards] == [
        [torch.float64, torch.float32, torch.bfloat16]
    ] * 2


def test_more_shards_than_elements_are_refused():
    with pytest.raises(MethodError, match=r"shards \(4\) must not exceed the model's trainable elements \(3\)"):
        ShardPlan.make(model_of([3]), num_shards=4)


def test_plans_of_different_models_have_different_digests():
    digests = {
        ShardPlan.make(model_of(sizes, dtype), num_shards=shards).digest
        for sizes in ([10, 20], [20, 10])
        for dtype in (torch.float32, torch.float64)
        for shards in (1, 2)
    }
    assert len(digests) == 8
    assert (
        ShardPlan.make(model_of([10, 20]), num_shards=2).digest
        == ShardPlan.make(model_of([10, 20]), num_shards=2).digest
    )
