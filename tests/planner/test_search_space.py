"""A space yields every combination of values once."""

import pytest

from sandtable.errors import PlanError
from sandtable.planner import Knob, SearchSpace


def test_a_knob_is_read_with_the_types_of_its_values():
    assert Knob.parse("tp=1,2,4").values == (1, 2, 4)
    assert Knob.parse("tp = 1..4").values == (1, 2, 3, 4)
    assert Knob.parse("lr=0.5,1e-3").values == (0.5, 0.001)
    assert Knob.parse("recompute=none,full").values == ("none", "full")
    assert Knob.parse("sp=true,false").values == (True, False)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tp", "a knob must be a name, = and values"),
        ("tp=", "must have values to try"),
        ("tp=1,2,1", "the values of knob tp must differ"),
        ("a-b=1", "a name like a variable's"),
    ],
)
def test_a_knob_that_cannot_be_tried_is_an_error(text, rule):
    with pytest.raises(PlanError, match=rule):
        Knob.parse(text)


def test_combinations_are_all_different_and_the_last_knob_is_fastest():
    space = SearchSpace(knobs=(Knob("a", (1, 2)), Knob("b", ("x", "y", "z"))))
    names = [str(one) for one in space.combinations()]
    assert names == ["a=1 b=x", "a=1 b=y", "a=1 b=z", "a=2 b=x", "a=2 b=y", "a=2 b=z"]
    assert len(names) == space.size


def test_the_first_violated_condition_is_named():
    space = SearchSpace(knobs=(Knob("tp", (1, 8)),), conditions=("tp < 9", "tp <= world"))
    small, large = space.combinations()
    assert space.violated(small, {"world": 4}) == ""
    assert space.violated(large, {"world": 4}) == "tp <= world"


def test_a_space_needs_knobs_and_each_once():
    with pytest.raises(PlanError, match="at least one knob"):
        SearchSpace(knobs=())
    with pytest.raises(PlanError, match="tp is given twice"):
        SearchSpace(knobs=(Knob("tp", (1,)), Knob("tp", (2,))))
