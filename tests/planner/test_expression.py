"""Expressions compute with knobs, and can do nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandtable.errors import PlanError
from sandtable.planner.expression import Expression

NUMBERS = st.integers(1, 64)
TEXTS = ("tp * pp <= world", "world // tp - pp % 3", "tp == pp or not world > 8", "max(tp, 2) if pp in [1, 2] else -tp")
FORBIDDEN = (
    "__import__('os').system('true')",
    "tp.real",
    "[x for x in tp]",
    "lambda: 1",
    "open('a')",
    "tp := 1",
    "f'{tp}'",
)


@given(tp=NUMBERS, pp=NUMBERS, world=NUMBERS)
def test_arithmetic_and_comparisons_are_those_of_python(tp, pp, world):
    values = {"tp": tp, "pp": pp, "world": world}
    for text in (
        "tp * pp <= world",
        "world // tp - pp % 3",
        "tp == pp or not world > 8",
        "max(tp, 2) if pp in [1, 2] else -tp",
    ):
        assert Expression(text).value(values) == eval(text, {}, values)


def test_names_are_those_that_need_a_value():
    assert Expression("min(tp, 4) * pp").names == {"tp", "pp"}


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('true')", "tp.real", "[x for x in tp]", "lambda: 1", "open('a')", "tp := 1", "f'{tp}'"],
)
def test_anything_else_is_an_error_with_what_is_allowed(text):
    with pytest.raises(PlanError, match=r"an expression (may have|must be)"):
        Expression(text)


def test_a_name_without_a_value_is_an_error_that_lists_the_known_ones():
    with pytest.raises(PlanError, match=r"names in 'tp \* dp' must be knobs, but dp is none; known are pp, tp"):
        Expression("tp * dp").value({"tp": 1, "pp": 2})


@pytest.mark.parametrize("text", ["tp // (pp - pp)", "tp + 'a'", "2 ** (tp * 100)"])
def test_what_cannot_be_computed_names_the_values(text):
    with pytest.raises(PlanError, match="has none"):
        Expression(text).value({"tp": 4, "pp": 2})
