"""Findings are silenced by rule, or by a comment on a line that their evidence names."""

import json
from pathlib import Path

from sandtable.check import silence
from sandtable.findings import Evidence, Finding, Severity

SCRIPT = """\
loss = loss.item()  # sandtable: ignore[host-read]
loss = loss.item()  # sandtable: ignore[other-rule, host-read] it is worth its time
loss = loss.item()  # sandtable: ignore
loss = loss.item()
loss = reduce(
    loss,
    group,  # sandtable: ignore[host-read]
)
loss = loss.item()  # noqa: E501  # sandtable:ignore[host-read]
if loss.item() > 3:
    print("# it is ignored")
"""


def finding(file: Path | str, *lines: int, rule: str = "host-read") -> Finding:
    rows = tuple(Evidence(ranks=(0,), text="reads", file=str(file), line=line) for line in lines)
    return Finding(rule=rule, severity=Severity.WARNING, message="m", ranks=(0,), evidence=rows)


def silenced(tmp_path: Path, *lines: int, rule: str = "host-read") -> bool:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    kept, silent = silence([finding(script, *lines, rule=rule)])
    assert len(kept) + len(silent) == 1
    return bool(silent)


def test_a_comment_names_the_rules_that_it_silences(tmp_path: Path) -> None:
    assert [silenced(tmp_path, line) for line in (1, 2, 3, 4, 9, 10)] == [True, True, True, False, True, False]
    assert [silenced(tmp_path, line, rule="slow") for line in (1, 2, 3)] == [False, False, True]


def test_any_line_of_the_evidence_may_have_the_comment(tmp_path: Path) -> None:
    assert silenced(tmp_path, 4, 1)


def test_a_comment_counts_for_the_whole_statement_and_for_no_other(tmp_path: Path) -> None:
    assert [silenced(tmp_path, line) for line in (5, 6, 7, 8)] == [True] * 4
    assert not silenced(tmp_path, 10)
    assert not silenced(tmp_path, 11)


def test_a_rule_is_silenced_by_name(tmp_path: Path) -> None:
    rows = [finding(tmp_path / "a.py", 1), finding("", 0, rule="slow")]
    kept, silent = silence(rows, ["slow"])
    assert (kept, silent) == ((rows[0],), (rows[1],))


def test_lines_that_cannot_be_read_silence_nothing(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("# sandtable: ignore")
    rows = [finding(tmp_path / name, 1) for name in ("missing.py", "data.txt")] + [finding("", 0)]
    assert silence(rows)[1] == ()
    broken = tmp_path / "broken.py"
    broken.write_text("f(\n# sandtable: ignore\n")
    assert silence([finding(broken, 2)])[0] == ()


def test_a_comment_in_a_notebook_counts(tmp_path: Path) -> None:
    notebook = tmp_path / "train.ipynb"
    cell = {"cell_type": "code", "source": "x.item()  # sandtable: ignore[host-read]", "metadata": {}, "outputs": []}
    notebook.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    assert silence([finding(f"{notebook} cell 1", 1)])[0] == ()
