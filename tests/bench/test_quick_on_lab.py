"""Every benchmark that trains on a lab runs with --quick; it skips itself where no lab can be built."""

import json
from pathlib import Path

import pytest
from tests.bench.benchmarks import ON_LAB, assert_prints_figures, run


@pytest.mark.parametrize("file", ON_LAB, ids=lambda file: file.stem)
def test_a_quick_run_ends_with_its_figures(file: Path) -> None:
    assert_prints_figures(file)


@pytest.mark.parametrize("file", ON_LAB, ids=lambda file: file.stem)
def test_a_benchmark_without_a_lab_prints_the_reason(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "'ip'" in json.loads(run(file))["skipped"]
