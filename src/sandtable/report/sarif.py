"""SARIF: findings in the format that editors and code review read (OASIS SARIF 2.1.0).

A finding is a result. Its location is the first line that its evidence names; the other lines, of whichever ranks, are
related locations. Files are named relative to the root of the repository that the working directory is in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandtable.check.rule_pages import RulePage, rule_pages
from sandtable.findings import Evidence, Finding, Severity, name_ranks
from sandtable.launch import notebook_of
from sandtable.report.replacing import replacing
from sandtable.report.summary import Summary
from sandtable.version import __version__

__all__ = ["SCHEMA_ADDRESS", "sarif_of", "write_sarif"]

SCHEMA_ADDRESS = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def write_sarif(summary: Summary, path: Path) -> None:
    """Write the findings of a run as a SARIF file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(sarif_of(summary), indent=1) + "\n", encoding="utf-8")


def sarif_of(summary: Summary, *, root: Path | None = None) -> dict[str, Any]:
    """Return the findings of a run as a SARIF log; silenced ones are there, marked as suppressed."""
    root = root or _repository()
    script = _script_of(summary)
    rules = list(dict.fromkeys(finding.rule for finding in (*summary.findings, *summary.silenced)))
    results = [_result(finding, rules, root, script) for finding in summary.findings]
    for finding in summary.silenced:
        kind = "external" if finding.rule in summary.inputs.ignored_rules else "inSource"
        results.append(_result(finding, rules, root, script) | {"suppressions": [{"kind": kind}]})
    driver = {
        "name": "sandtable",
        "version": __version__,
        "rules": [_rule(rule, rule_pages().get(rule)) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {_ROOT: {"uri": f"{root.as_uri()}/"}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "commandLine": " ".join(summary.command)}],
        "results": results,
    }
    return {"$schema": SCHEMA_ADDRESS, "version": "2.1.0", "runs": [run]}


def _rule(rule: str, page: RulePage | None) -> dict[str, Any]:
    described: dict[str, Any] = {"id": rule, "name": "".join(map(str.capitalize, rule.split("-")))}
    if page is None:
        return described
    return described | {
        "shortDescription": {"text": page.sentence},
        "fullDescription": {"text": page.sentence},
        "help": {"text": page.text, "markdown": page.text},
    }


def _result(finding: Finding, rules: Sequence[str], root: Path, script: str) -> dict[str, Any]:
    placed = [row for row in finding.evidence if row.file]
    main = placed[0] if placed else Evidence(ranks=finding.ranks, text="", file=script)
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [_location(main, root)] if main.file else [],
    }
    if len(placed) > 1:
        rows = enumerate(_distinct(placed[1:]), 1)
        related = [
            {"id": number, **_location(row, root), "message": {"text": f"{name_ranks(row.ranks)} {row.text}"}}
            for number, row in rows
        ]
        result["relatedLocations"] = related
    return result


def _message(finding: Finding) -> str:
    """Return message, evidence and remedy as text; what the first line's ranks do stands here alone."""
    rows = [f"{name_ranks(row.ranks)} {row.text}" for row in finding.evidence[:1]]
    return "\n".join([finding.message, *rows, *([f"Remedy: {finding.remedy}"] if finding.remedy else [])])


def _location(row: Evidence, root: Path) -> dict[str, Any]:
    """Return the place; a line of a notebook's cell is no line of its file."""
    notebook = notebook_of(row.file)
    physical: dict[str, Any] = {"artifactLocation": _artifact(notebook or row.file, root)}
    if row.line > 0 and notebook is None:
        physical["region"] = {"startLine": row.line}
    location: dict[str, Any] = {"physicalLocation": physical}
    if notebook is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": row.place}]
    return location


def _artifact(file: str, root: Path) -> Mapping[str, str]:
    path = Path(file).absolute()
    if path.is_relative_to(root):
        relative = path.relative_to(root)
        return {"uri": _quoted(relative), "uriBaseId": _ROOT}
    return {"uri": path.as_uri()}


def _quoted(path: Path) -> str:
    return (Path("/") / path).as_uri().removeprefix("file:///")


def _distinct(rows: Iterable[Evidence]) -> list[Evidence]:
    return list(dict.fromkeys(rows))


def _repository() -> Path:
    """Return the root of the repository around the working directory, or that directory."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def _script_of(summary: Summary) -> str:
    """Return the script that the command names, for findings about no line; code review wants a file."""
    return next((word for word in summary.command if word.endswith((".py", ".ipynb")) and Path(word).is_file()), "")
