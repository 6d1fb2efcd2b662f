"""Decisions: each rank asks a number of its own whether to skip or to leave a step that all ranks make together.

In a rehearsal such numbers are stand-ins, so all ranks decide alike. On a cluster one of them has the bad batch.
"""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, Trace

__all__ = ["RoundChoice", "choice_at", "unshared_decision"]

_TRANSPARENT = frozenset(
    (
        *("isnan", "isfinite", "isinf", "isclose", "any", "all", "logical_not", "logical_or", "logical_and"),
        *("abs", "max", "min", "mean", "sum", "norm", "sqrt"),
        *("float", "bool", "int", "item", "detach", "cpu", "tolist"),
    )
)
"""Functions whose result is as much a rank's own as what goes in; another one may ask all ranks."""

_WORDS = {ast.Continue: "continue", ast.Break: "break"}


@dataclass(frozen=True, slots=True)
class RoundChoice:
    """An `if` that skips or leaves a round of a loop, by the word `how`, and the lines that it may leave out."""

    line: int
    how: str
    first: int
    last: int


def unshared_decision(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report numbers of each rank's own that decide whether the rank makes calls which others make, too."""
    reads: dict[Line, dict[int, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for rank, observed in sorted(trace.observations.items()):
        for event in observed.of_kind(EventKind.NUMBER_READ):
            reads[event.place][rank].append((event.facts["identity"], event.facts["outline"]))
    for place, by_rank in reads.items():
        ranks = tuple(by_rank)
        choice = choice_at(place.file, place.line) if len(ranks) > 1 and _differs(list(by_rank.values())) else None
        call = None if choice is None else _left_out(trace, ranks, place.file, choice)
        if choice is None or call is None:
            continue
        yield Finding(
            rule="unshared-decision",
            severity=Severity.WARNING,
            message="all ranks must skip or leave a step together, but each decides by a number of its own: where one "
            f"takes this {choice.how}, it leaves out a call in which the others wait for it",
            ranks=ranks,
            evidence=(
                at_line(ranks, "reads a number of its own", place),
                at_line(ranks, f"takes this {choice.how}, or not", Line(place.file, choice.line)),
                at_line(ranks, f"calls {call[0]}, which that leaves out", call[1]),
            ),
            remedy="let all ranks decide together: all_reduce the number or the flag (MAX if any rank may decide) "
            "before the if",
        )


def choice_at(file: str, line: int) -> RoundChoice | None:
    """Return the `if` that the number read on this line decides, if it skips or leaves a round of a loop."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While) and _holds(node, line)]
    if not loops:
        return None
    loop = max(loops, key=lambda node: node.lineno)
    statements = [node for node in ast.walk(loop) if isinstance(node, ast.stmt)]
    names = _assigned(statements, line)
    for node in statements:
        if isinstance(node, ast.If) and node.lineno >= line - _height(node.test) and _is_decided_by(node, line, names):
            word = next((_WORDS[type(step)] for step in node.body if isinstance(step, ast.Continue | ast.Break)), "")
            if word:
                first = (node.end_lineno or node.lineno) + 1 if word == "continue" else loop.lineno
                return RoundChoice(node.lineno, word, first, loop.end_lineno or loop.lineno)
    return None


def _is_decided_by(node: ast.If, line: int, names: frozenset[str]) -> bool:
    """Return whether the condition reads the number on this line, or asks a name that holds it, and nothing else."""
    test = node.test
    if not _is_transparent(test):
        return False
    if test.lineno <= line <= (test.end_lineno or test.lineno):
        return True
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(test))


def _assigned(statements: Sequence[ast.stmt], line: int) -> frozenset[str]:
    """Return the names that hold the number read on this line, and nothing else in the loop."""
    targets: dict[str, list[ast.Assign]] = defaultdict(list)
    for node in statements:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    targets[target.id].append(node)
    changed = (node.target for node in statements if isinstance(node, ast.AugAssign | ast.For))
    others = {target.id for target in changed if isinstance(target, ast.Name)}
    return frozenset(
        name
        for name, nodes in targets.items()
        if len(nodes) == 1 and name not in others and _holds(nodes[0], line) and _is_transparent(nodes[0].value)
    )


def _is_transparent(value: ast.expr) -> bool:
    calls = (part for part in ast.walk(value) if isinstance(part, ast.Call))
    return all(getattr(call.func, "attr", getattr(call.func, "id", "")) in _TRANSPARENT for call in calls)


def _left_out(trace: Trace, ranks: Sequence[int], file: str, choice: RoundChoice) -> tuple[str, Line] | None:
    """Return a call, of a group with two of these ranks, on one of the lines that a rank may leave out."""
    for call in trace.observations[ranks[0]].calls:
        place, members = call.place, {*ranks} & {*(call.group or ranks)}
        if place.file == file and choice.first <= place.line <= choice.last and len(members) > 1:
            return call.op, place
    return None


def _differs(reads: Sequence[Sequence[tuple[str, str]]]) -> bool:
    """Return whether ranks read different numbers: their histories differ, whatever groups they are in."""
    return any(
        all(identity != "0" for identity, _ in pairs) and len({outline for _, outline in pairs}) > 1
        for pairs in zip(*reads, strict=False)
    )


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _height(node: ast.expr) -> int:
    return (node.end_lineno or node.lineno) - node.lineno
