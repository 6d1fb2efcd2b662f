"""Silencing: findings that the user does not want to hear of, by rule or by a comment on a line of the script.

loss = loss.item()  # sandtable: ignore[host-read]
loss = loss.item()  # sandtable: ignore[host-read, tiny-collective] it is worth its time
loss = loss.item()  # sandtable: ignore
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from sandtable.findings import Evidence, Finding
from sandtable.launch import cell_lines

__all__ = ["silence"]

_COMMENT = re.compile(r"#\s*sandtable:\s*ignore\b\s*(?:\[([^\]]*)\])?")
_ALL = frozenset({"*"})


def silence(
    findings: Iterable[Finding], rules: Collection[str] = ()
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Part findings into those to report and those that `rules` or a comment on a line of their evidence silences."""
    read = cache(_comments)

    def is_silenced(finding: Finding) -> bool:
        return finding.rule in rules or any(
            row.line in read(row.file) and _covers(read(row.file)[row.line], finding.rule)
            for row in finding.evidence
            if _can_have_comment(row)
        )

    rows = list(findings)
    silenced = tuple(finding for finding in rows if is_silenced(finding))
    return tuple(finding for finding in rows if finding not in silenced), silenced


def _covers(names: frozenset[str], rule: str) -> bool:
    return names == _ALL or rule in names


def _can_have_comment(row: Evidence) -> bool:
    return bool(row.file) and row.line > 0


def _comments(file: str) -> dict[int, frozenset[str]]:
    """Return the rules that comments silence, by line; a comment counts for all lines of its statement."""
    lines = _lines(file)
    found = {number: _names(line) for number, line in enumerate(lines, 1) if _COMMENT.search(line)}
    if not found:
        return {}
    for first, last in _statements("\n".join(lines)):
        for number in [number for number in range(first, last + 1) if number in found]:
            for other in range(first, last + 1):
                found[other] = _joined(found.get(other, frozenset()), found[number])
    return found


def _names(line: str) -> frozenset[str]:
    match = _COMMENT.search(line)
    if match is None or match[1] is None:
        return _ALL
    return frozenset(name.strip() for name in match[1].split(",") if name.strip())


def _joined(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    return _ALL if _ALL in (first, second) else first | second


def _statements(source: str) -> Iterable[tuple[int, int]]:
    """Yield first and last line of simple statements that span several lines."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.end_lineno not in (None, node.lineno):
            yield node.lineno, node.end_lineno or node.lineno


def _lines(file: str) -> list[str]:
    cell = cell_lines(file)
    if cell is not None:
        return list(cell)
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines() if file.endswith(".py") else []
    except OSError:
        return []
