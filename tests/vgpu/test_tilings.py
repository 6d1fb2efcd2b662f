"""Tilings: the same access of another layer is solved once, and with the same result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy

from sandtable.vgpu.compile.tilings import remember_tilings

X, Y = sympy.symbols("x y", integer=True, nonnegative=True)


def test_an_access_with_variables_of_other_names_is_solved_once():
    solved = []

    def solve(expr: Any) -> int:
        solved.append(expr)
        return 8

    module = SimpleNamespace(solve_for_tiling=solve)
    remember_tilings(module)
    assert [module.solve_for_tiling(expr) for expr in (4 * X + 1, 4 * Y + 1, 8 * X)] == [8, 8, 8]
    assert solved == [4 * X + 1, 8 * X]


def test_an_access_of_several_variables_is_left_to_inductor():
    module = SimpleNamespace(solve_for_tiling=lambda expr: sympy.Integer(len(expr.free_symbols)))
    remember_tilings(module)
    assert module.solve_for_tiling(X + Y) == 2


def test_what_is_remembered_is_what_inductor_finds():
    from torch._inductor import tiling_utils
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    if not hasattr(tiling_utils, "solve_for_tiling"):
        pytest.skip("this release of torch does not solve for tilings")
    module = SimpleNamespace(solve_for_tiling=tiling_utils.solve_for_tiling)
    remember_tilings(module)
    for variable in (X, Y):
        for expr in (variable / 4, FloorDiv(variable, 768), 5 * variable, ModularIndexing(variable, 4, 8) + 3):
            assert module.solve_for_tiling(expr) == tiling_utils.solve_for_tiling(expr)


def test_a_release_that_does_not_solve_is_left_as_it_is():
    module = SimpleNamespace()
    remember_tilings(module)
    assert not vars(module)
