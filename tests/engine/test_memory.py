"""Memory by category: exact where counting tells what it must be, and always adding up to the allocator's account."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.formulas import Layout
from tests.trace.building import make_rank, spec
from tests.vgpu.capturing import capture
from tests.vgpu.test_state_memory import TINY, stage_shapes, weight, whole_shapes

from sandtable.engine.memory import Category, classify_blocks, memory_curve, memory_use
from sandtable.trace import Group, Kind, Phase, RankView, RunFacts, Signature, Trace

ADAM = Signature("aten::_foreach_addcdiv_", (spec(256), spec(256), spec(256)), (), '["t","t","t",[-0.1]]')
MM = Signature("aten::mm", (spec(8, 4), spec(4, 16)), (spec(8, 16),))

Row = tuple[int, int, int, int]


def view_of(rows: list[Row]) -> RankView:
    """Return a rank that did this: (kind, ref, phase, value)."""
    columns = {name: [row[k] for row in rows] for k, name in enumerate(("kind", "ref", "phase", "value"))}
    records = make_rank(records=columns, signatures=[ADAM, MM], groups=[Group("world", (0,))], num_steps=1)
    return Trace.assemble(
        {0: records}, classes={0: [0]}, groups=[Group("world", (0,))], run=RunFacts(world_size=1)
    ).rank(0)


def step(first_block: int) -> list[Row]:
    """Forward keeps an activation, backward makes a gradient out of it, the optimizer makes its state once."""
    activation, temporary, gradient = first_block, first_block + 1, first_block + 2
    return [
        (Kind.ALLOC, activation, 0, 2048),
        (Kind.OPERATOR, 1, Phase.FORWARD, 0),
        (Kind.ALLOC, temporary, 0, 512),
        (Kind.OPERATOR, 1, Phase.FORWARD, 0),
        (Kind.FREE, temporary, 0, 512),
        (Kind.OPERATOR, 1, Phase.FORWARD, 0),
        (Kind.ALLOC, gradient, 0, 1024),
        (Kind.OPERATOR, 1, Phase.BACKWARD, 0),
        (Kind.FREE, activation, 0, 2048),
        (Kind.OPERATOR, 0, Phase.OPTIMIZER, 0),
    ]


def test_lifetimes_tell_what_a_block_holds() -> None:
    parameter, state = 0, 1
    rows: list[Row] = [(Kind.ALLOC, parameter, 0, 1024), (Kind.OPERATOR, 1, Phase.FORWARD, 0), *step(10)]
    rows[-1:] = [(Kind.ALLOC, state, 0, 1024), rows[-1], (Kind.STEP, 0, Phase.OPTIMIZER, 0)]
    rows += [(Kind.FREE, 12, 0, 1024), *step(20), (Kind.STEP, 1, Phase.OPTIMIZER, 0), (Kind.FREE, 22, 0, 1024)]
    blocks = classify_blocks(view_of(rows))
    assert [Category(each).name for each in blocks.category] == [
        "PARAMETERS", "ACTIVATIONS", "TEMPORARY", "GRADIENTS", "OPTIMIZER", "ACTIVATIONS", "TEMPORARY", "GRADIENTS",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def replica() -> RankView:
    return capture("gpt_ddp.py", "--accumulate", 1, "--amp", "none", world_size=2).rank(1)


def held_at_the_end(view: RankView) -> dict[str, int]:
    """By category, when the last step has just ended."""
    held = memory_curve(view, rows=view.step_slices()[-1]).bytes_by_category[-1].tolist()
    return {each.name.lower(): held[each] for each in Category}


def test_a_replica_with_adam_holds_what_counting_says(replica: RankView) -> None:
    allocated, asked = weight(whole_shapes(TINY), 4)
    bucket = -(-asked // 512) * 512
    held = held_at_the_end(replica)
    assert held["parameters"] == allocated
    assert held["optimizer"] == 2 * allocated
    assert held["gradients"] == allocated + bucket, "DDP copies them into a bucket of its own"
    assert held["buffers"] == 0


@pytest.mark.slow
def test_shares_of_tensor_and_pipeline_ranks_hold_what_counting_says() -> None:
    layout = Layout(tp=2, pp=2, dp=2, virtual_stages=1)
    trace = capture("gpt_3d.py", "--tp", 2, "--pp", 2, world_size=8)
    for pp_rank in range(layout.pp):
        allocated, asked = weight(stage_shapes(TINY, layout, pp_rank), 2)
        held = held_at_the_end(trace.rank(pp_rank * 4))
        assert held["parameters"] == allocated
        assert held["optimizer"] == 2 * allocated
        assert held["gradients"] == -(-asked // 512) * 512, "one buffer holds all gradients"


def test_normalisation_statistics_are_buffers_not_parameters() -> None:
    script = Path(__file__).parents[2] / "examples" / "resnet_ddp.py"
    view = capture(script, world_size=1).rank(0)
    held = held_at_the_end(view)
    assert held["parameters"] == held["optimizer"], "SGD with momentum keeps one number a parameter"
    assert 0 < held["buffers"] < held["parameters"] / 10


def test_categories_add_up_to_the_peak_that_the_allocator_reports(replica: RankView) -> None:
    use = memory_use(replica)
    assert use.allocated_bytes == sum(use.bytes_by_category.values()) == replica.memory.allocated_bytes
    assert use.reserved_bytes <= use.peak_reserved_bytes == replica.memory.reserved_bytes
    assert use.fragmentation_bytes == use.reserved_bytes - use.allocated_bytes


def test_a_thinned_curve_keeps_its_ends_and_its_peak(replica: RankView) -> None:
    whole, thin = memory_curve(replica, max_points=None), memory_curve(replica, max_points=100)
    assert len(thin.row) <= 100 < len(whole.row)
    assert thin.allocated_bytes.max() == whole.allocated_bytes.max()
    assert (thin.row[0], thin.row[-1]) == (whole.row[0], whole.row[-1])


def test_a_rank_without_memory_has_an_empty_curve() -> None:
    view = view_of([(Kind.OPERATOR, 1, Phase.FORWARD, 0)])
    assert memory_use(view).allocated_bytes == 0
    assert memory_curve(view).bytes_by_category.sum() == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(list(Phase)), st.integers(1, 9)), max_size=60))
def test_whatever_happens_no_byte_is_lost_or_counted_twice(course: list[tuple[int, Phase, int]]) -> None:
    rows: list[Row] = []
    alive: dict[int, int] = {}
    for block, phase, size in course:
        if block in alive:
            rows.append((Kind.FREE, block, 0, alive.pop(block)))
        else:
            alive[block] = size * 512
            rows.append((Kind.ALLOC, block, 0, alive[block]))
        rows.append((Kind.OPERATOR, 0, phase, 0))
        if phase == Phase.OPTIMIZER:
            rows.append((Kind.STEP, 0, phase, 0))
    rows.append((Kind.OPERATOR, 1, Phase.FORWARD, 0))
    view = view_of(rows)
    curve = memory_curve(view, max_points=None)
    index, expected = view.memory_timeline()
    assert (curve.bytes_by_category >= 0).all()
    assert np.array_equal(curve.allocated_bytes[-len(index) :] if len(index) else expected, expected)
    assert curve.allocated_bytes[-1] == sum(alive.values())
