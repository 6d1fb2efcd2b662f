"""Named ranks: ranks that the script itself sets apart, by comparing a rank with a number.

A capture of many ranks runs a few of each kind. `if rank == 5` makes a rank of its own kind that no sample by position
would hit, so the ranks that the source names are sampled, too. This only chooses what to run: what is found there is
found by running.
"""

import ast
import os
from collections.abc import Iterator

__all__ = ["named_ranks"]

_MOST_NAMED = 6


def named_ranks(script: str, *, world_size: int, ranks_per_node: int) -> tuple[int, ...]:
    """Return the ranks that comparisons in this file name, rank 0 left out."""
    if not script.endswith(".py") or not os.path.isfile(script):
        return ()
    try:
        with open(script, encoding="utf-8", errors="replace") as source:
            tree = ast.parse(source.read())
    except (SyntaxError, ValueError):
        return ()
    named: dict[int, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for number, is_local in _numbers(node):
                limit = ranks_per_node if is_local else world_size
                named |= {number: None} if 0 < number < limit else {}
    return tuple(named)[:_MOST_NAMED]


def _numbers(comparison: ast.Compare) -> Iterator[tuple[int, bool]]:
    """Yield the numbers that a rank is compared with, and whether it is the rank within its node."""
    sides = [comparison.left, *comparison.comparators]
    words = " ".join(_words(side) for side in sides).lower()
    if "rank" not in words:
        return
    for side in sides:
        for node in [side, *getattr(side, "elts", ())]:
            if isinstance(node, ast.Constant) and type(node.value) is int:
                yield node.value, "local" in words


def _words(side: ast.expr) -> str:
    return " ".join(
        getattr(node, "id", "") or getattr(node, "attr", "") or str(getattr(node, "value", ""))
        for node in ast.walk(side)
        if isinstance(node, ast.Name | ast.Attribute | ast.Constant)
    )
