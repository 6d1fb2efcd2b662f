"""Named ranks: ranks that the script itself sets apart, by comparing a rank with a number.

A capture of many ranks runs a few of each kind. `if rank == 5` makes a rank of its own kind that no sample by position
would hit, so the ranks that the source names are sampled, too, as are those at the places that `tp_rank == 3` names.
This only chooses what to run: what is found there is found by running.
"""

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

__all__ = ["named_ranks"]

_MOST_NAMED = 6
_MOST_PLACED = 8
_MOST_FILES = 20

_OF_THE_WORLD = ("rank", "get_rank", "global_rank", "world_rank", "rank_id")
_OF_THE_NODE = "local_rank"

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Named:
    """A number that something is compared with which has a rank in its name; of an axis, unless it says otherwise."""

    number: int
    is_of_world: bool
    is_of_node: bool


def named_ranks(
    script: str, *, world_size: int, ranks_per_node: int, positions: Sequence[Positions] = ()
) -> tuple[int, ...]:
    """Return the ranks that comparisons in this file, and in its neighbours that it imports, name; rank 0 left out.

    `positions` has, per kind of group, the position of every rank in its group, or -1.
    """
    found = [named for tree in _trees(script) for named in _comparisons(tree)]
    ranks: dict[int, None] = {}
    for named in found:
        limit = ranks_per_node if named.is_of_node else world_size
        ranks |= {named.number: None} if 0 < named.number < limit else {}
    numbers = dict.fromkeys(named.number for named in found if not named.is_of_world and not named.is_of_node)
    placed = [rank for rank in _placed(list(numbers), positions) if rank > 0 and rank not in ranks]
    return (*tuple(ranks)[:_MOST_NAMED], *dict.fromkeys(placed[:_MOST_PLACED]))


def _placed(numbers: Sequence[int], positions: Sequence[Positions]) -> Iterator[int]:
    """Yield ranks at these positions, first those at a position in groups of two kinds."""
    for one, other in product(range(len(positions)), repeat=2):
        for first, second in product(numbers, numbers) if one < other else ():
            yield from np.flatnonzero((positions[one] == first) & (positions[other] == second))[:1].tolist()
    for position in positions:
        for number in numbers:
            yield from np.flatnonzero(position == number)[-1:].tolist()


def _trees(script: str) -> Iterator[ast.Module]:
    """Yield the syntax of a script and of the modules beside it that it imports, directly or not."""
    files = [script]
    for file in files:
        tree = _parsed(file)
        if tree is not None:
            yield tree
            beside = (os.path.join(os.path.dirname(script), f"{name}.py") for name in _imports(tree))
            files += [path for path in beside if os.path.isfile(path) and path not in files][: _MOST_FILES - len(files)]


def _parsed(file: str) -> ast.Module | None:
    if not file.endswith(".py") or not os.path.isfile(file):
        return None
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return ast.parse(source.read())
    except (SyntaxError, ValueError):
        return None


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(".", os.sep) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.replace(".", os.sep)


def _comparisons(tree: ast.Module) -> Iterator[_Named]:
    constants = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = [word.lower() for side in sides for word in _words(side)]
            of_ranks = [word for word in words if "rank" in word]
            if of_ranks:
                is_axis = any(isinstance(part, ast.Call) and part.args for side in sides for part in ast.walk(side))
                is_of_node = any(_OF_THE_NODE in word for word in of_ranks) and not is_axis
                is_of_world = not is_of_node and any(word in _OF_THE_WORLD for word in of_ranks) and not is_axis
                for number in dict.fromkeys(_numbers(sides, constants)):
                    yield _Named(number, is_of_world, is_of_node)


def _numbers(sides: Iterable[ast.expr], constants: dict[str, tuple[int, ...]]) -> Iterator[int]:
    """Yield the numbers in a comparison, also those behind names."""
    for side in sides:
        for node in ast.walk(side):
            if isinstance(node, ast.Constant) and type(node.value) is int:
                yield node.value
            yield from constants.get(getattr(node, "id", "") or getattr(node, "attr", ""), ())


def _constants(tree: ast.Module) -> dict[str, tuple[int, ...]]:
    """Return the names to which numbers, or lists of some, are assigned."""
    found: dict[str, tuple[int, ...]] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is None or not isinstance(value, ast.Constant | ast.Tuple | ast.List | ast.Set | ast.Dict):
            continue
        items = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", [value])
        numbers = tuple(item.value for item in items if isinstance(item, ast.Constant) and type(item.value) is int)
        found |= {target.id: numbers for target in targets if isinstance(target, ast.Name) and numbers}
    return found


def _words(side: ast.expr) -> Iterator[str]:
    for node in ast.walk(side):
        word = getattr(node, "id", "") or getattr(node, "attr", "") or getattr(node, "value", "")
        if isinstance(node, ast.Name | ast.Attribute | ast.Constant) and isinstance(word, str):
            yield word
