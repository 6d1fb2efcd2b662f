"""Every mistake of the corpus is found, by the right rule and on the right line, and no corrected script is accused.

`pytest tests/check/test_corpus.py -s` prints the table.
"""

import os

import pytest
from tests.check.corpus_case import Case, cases
from tests.vgpu.virtual import on_shared_launcher

from sandtable import Launcher

CASES = cases()


@pytest.fixture(scope="module")
def launcher():
    with on_shared_launcher() as shared:
        yield shared


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_mistake_is_found_on_its_line_and_the_corrected_script_is_not_accused(
    case: Case, launcher: Launcher, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    wrong = case.rehearse("wrong.py", launcher)
    right = case.rehearse("right.py", launcher)
    found = [finding.rule for finding in wrong.findings]
    print(f"{case.name:48} {'/'.join(case.rules):32} {', '.join(found)}")
    assert case.has_rule(wrong), f"expected {case.rules}, found:\n" + "\n".join(map(str, wrong.findings))
    assert case.has_line(wrong), f"lines {sorted(case.lines)} not named:\n" + "\n".join(map(str, wrong.findings))
    assert not case.accusations(right), "\n".join(map(str, case.accusations(right)))
    assert os.environ.get("SANDTABLE_CORPUS") or right.error is None, right.error
