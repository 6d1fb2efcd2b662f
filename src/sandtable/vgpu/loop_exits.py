"""Loop exits: ranks that left a loop in which the others went on, found when all have been stopped.

A rank waits in a call that it has made before, on the same line, and another rank has made fewer times and will not
make again. What is known of that other rank says why: its data loader has ended, so it had fewer batches; or it is out
of the loop for another reason, which can only be one of the statements in the loop that leave it.
"""

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from sandtable.findings import Evidence, Finding, Severity
from sandtable.vgpu.call_logs import CallTable, describe_call
from sandtable.vgpu.protocol import Call, LoaderState

__all__ = ["EARLY_EXIT", "UNEQUAL_BATCHES", "StoppedRank", "explain_exit"]

EARLY_EXIT = "early-exit"
UNEQUAL_BATCHES = "unequal-batches"

_MOST_EXITS = 4
_MOST_CALLERS = 6
_KEYWORDS = {ast.Break: "break", ast.Return: "return"}

Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedRank:
    """What is known of a rank when everything has stopped; `call` is the one it is in, None if its script ended."""

    rank: int
    call: Call | None
    stack: tuple[Place, ...] = ()
    loaders: tuple[LoaderState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """Two ranks: one waits in a loop that the other has left."""

    waiter: StoppedRank
    leaver: StoppedRank
    call: Call
    num_rounds: int
    """How often the one that left has made the call."""


def explain_exit(finding: Finding, stopped: Sequence[StoppedRank], table: CallTable, entry: int) -> Finding | None:
    """Return a better finding if a rank left a loop that another one is in."""
    for waiter in stopped:
        for leaver in stopped:
            left = _left(waiter, leaver, table, entry)
            if left is None:
                continue
            better = _unequal_batches(finding, left) or _early_exit(finding, left)
            if better is not None:
                return better
    return None


def _left(waiter: StoppedRank, leaver: StoppedRank, table: CallTable, entry: int) -> _Left | None:
    call = waiter.call
    if call is None or waiter.rank == leaver.rank:
        return None
    place = call.op, call.file, call.line
    counts = [
        sum((other.op, other.file, other.line) == place for other in table.of_rank(rank, entry))
        for rank in (waiter.rank, leaver.rank)
    ]
    is_elsewhere = leaver.call is None or (leaver.call.file, leaver.call.line) != place[1:]
    if not is_elsewhere or not 0 < counts[1] < counts[0]:
        return None
    return _Left(waiter=waiter, leaver=leaver, call=call, num_rounds=counts[1])


def _unequal_batches(finding: Finding, left: _Left) -> Finding | None:
    """Explain it by a loader that gave the rank that left fewer batches."""
    ours = {state[:2]: state for state in left.waiter.loaders}
    for theirs in reversed(left.leaver.loaders):
        mine = ours.get(theirs[:2])
        if mine is not None and theirs.is_exhausted and mine.num_batches > theirs.num_batches:
            message = (
                f"all ranks must read equally many batches, but rank {left.leaver.rank} has read all of its "
                f"{theirs.num_batches}, while rank {left.waiter.rank} has come to number {mine.num_batches}"
            )
            where = Evidence(
                ranks=(left.leaver.rank,),
                text=f"leaves the loop after {theirs.num_batches} batches",
                file=theirs.file,
                line=theirs.line,
            )
            return _with(finding, UNEQUAL_BATCHES, message, [_waiting(left), where], _BATCHES_REMEDY)
    return None


def _early_exit(finding: Finding, left: _Left) -> Finding | None:
    """Explain it by statements that leave a loop around the call, or by a loop that ran fewer rounds."""
    if left.leaver.call is not None:
        return None
    loops = list(_loops_around(left.waiter.stack or _callers(left.call.file, left.call.line)))
    exits = [place for loop in loops for place in loop.exits][:_MOST_EXITS]
    rank = left.leaver.rank
    if exits:
        message = (
            f"all ranks must leave a loop in the same round, but rank {rank} has left it and ended, while rank "
            f"{left.waiter.rank} goes on"
        )
        certainty = "left the loop by" if len(exits) == 1 else "left the loop, perhaps by"
        ways = [
            Evidence(ranks=(rank,), text=f"{certainty} this {keyword}", file=file, line=line)
            for file, line, keyword in exits
        ]
        return _with(finding, EARLY_EXIT, message, [_waiting(left), *ways], _EXIT_REMEDY)
    if not loops:
        return None
    message = (
        f"all ranks must make equally many rounds of a loop, but rank {rank} made fewer, or left out a call in one, "
        "and has ended"
    )
    where = [
        Evidence(ranks=(rank,), text="made fewer rounds of this loop, or skipped one", file=loop.file, line=loop.line)
        for loop in loops[:1]
    ]
    return _with(finding, UNEQUAL_BATCHES, message, [_waiting(left), *where], _BATCHES_REMEDY)


def _waiting(left: _Left) -> Evidence:
    call = left.call
    return Evidence(
        ranks=(left.waiter.rank,),
        text=f"waits in {describe_call(call)} once more, which rank {left.leaver.rank} made {left.num_rounds} times",
        file=call.file,
        line=call.line,
    )


def _with(finding: Finding, rule: str, message: str, evidence: list[Evidence], remedy: str) -> Finding:
    known = {(item.file, item.line) for item in evidence}
    rest = [item for item in finding.evidence if (item.file, item.line) not in known]
    return replace(
        finding, rule=rule, severity=Severity.ERROR, message=message, evidence=(*evidence, *rest), remedy=remedy
    )


_BATCHES_REMEDY = (
    "give every rank the same number of batches: a DistributedSampler, drop_last=True, the smallest number found by "
    "all_reduce with MIN; or wrap the loop in torch.distributed.algorithms.join.Join"
)
_EXIT_REMEDY = (
    "let all ranks decide together: all_reduce the flag with MAX, or broadcast it from the rank that decides, before "
    "the if"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A loop of the script around a line on the stack, and the statements that leave it."""

    file: str
    line: int
    exits: tuple[tuple[str, int, str], ...]


def _loops_around(stack: Sequence[Place]) -> Iterator[_Loop]:
    """Yield the loops that a rank was in, innermost first."""
    trees: dict[str, ast.Module | None] = {}
    for file, line in reversed(stack):
        if file not in trees:
            trees[file] = _parsed(file)
        tree = trees[file]
        around = [] if tree is None else [node for node in ast.walk(tree) if _is_loop_around(node, line)]
        for node in sorted(around, key=lambda node: -node.lineno):
            yield _Loop(file=file, line=node.lineno, exits=tuple(_exits(node, file)))


def _callers(file: str, line: int) -> list[Place]:
    """Return a line of the script and those that call the function it is in, as far as the names of functions tell."""
    tree = _parsed(file)
    places = [(file, line)]
    seen: set[str] = set()
    while tree is not None and len(seen) < _MOST_CALLERS:
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.lineno <= places[0][1] <= (node.end_lineno or node.lineno)
        ]
        if not functions or functions[-1].name in seen:
            break
        seen.add(functions[-1].name)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in seen]
        outside = [node for node in calls if not any(_holds(function, node) for function in functions[-1:])]
        if not outside:
            break
        places.insert(0, (file, outside[0].lineno))
    return places


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _holds(function: ast.FunctionDef, node: ast.Call) -> bool:
    return function.lineno <= node.lineno <= (function.end_lineno or function.lineno)


def _parsed(file: str) -> ast.Module | None:
    if not os.path.isfile(file):
        return None
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return ast.parse(source.read())
    except (SyntaxError, ValueError):
        return None


def _is_loop_around(node: ast.AST, line: int) -> TypeGuard[ast.For | ast.While]:
    return isinstance(node, ast.For | ast.While) and node.lineno <= line <= (node.end_lineno or node.lineno)


def _exits(loop: ast.AST, file: str) -> Iterator[tuple[str, int, str]]:
    """Yield the statements that leave this loop, but not those of loops and functions inside it."""

    def visit(node: ast.AST, *, is_inside: bool) -> Iterator[tuple[str, int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                continue
            if isinstance(child, ast.Return) or (isinstance(child, ast.Break) and not is_inside):
                yield file, child.lineno, _KEYWORDS[type(child)]
            yield from visit(child, is_inside=is_inside or isinstance(child, ast.For | ast.While))

    yield from visit(loop, is_inside=False)
