"""Every benchmark that needs no lab runs with --quick. Those on a lab: `test_quick_on_lab.py`.

Two files, because the suite is spread over processes file by file.
"""

from pathlib import Path

import pytest
from tests.bench.benchmarks import ELSEWHERE, assert_prints_figures


@pytest.mark.parametrize("file", ELSEWHERE, ids=lambda file: file.stem)
def test_a_quick_run_ends_with_its_figures(file: Path) -> None:
    assert_prints_figures(file)
