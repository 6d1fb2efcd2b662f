"""Tilings: what Inductor found out about an access to memory is remembered for the same access of the next layer.

To choose tiles, Inductor solves for each index expression the factor that would make neighbours in
a tile neighbours in memory, with sympy, for milliseconds each. A model of many layers asks the same again and again,
only with variables of other names.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["remember_tilings"]


def remember_tilings(module: Any) -> None:
    """Have `torch._inductor.tiling_utils` solve an expression of one variable once."""
    import sympy

    solve = getattr(module, "solve_for_tiling", None)
    if solve is None:
        return
    solutions: dict[Any, Any] = {}

    @functools.wraps(solve)
    def solve_for_tiling(expr: Any) -> Any:
        variables = expr.free_symbols
        if len(variables) != 1:
            return solve(expr)
        (variable,) = variables
        same = expr.xreplace({variable: sympy.Symbol("variable", **variable.assumptions0)})
        if same not in solutions:
            solutions[same] = solve(expr)
        return solutions[same]

    module.solve_for_tiling = solve_for_tiling
