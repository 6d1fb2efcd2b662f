"""Run a benchmark as a user would, and read its last line."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted((ROOT / "bench").glob("*.py"))
ON_LAB = [file for file in BENCHMARKS if "sandtable.lab" in file.read_text(encoding="utf-8")]
ELSEWHERE = [file for file in BENCHMARKS if file not in ON_LAB]
_TIMEOUT_S = 240.0


def run(file: Path, *flags: str) -> str:
    """Return the benchmark's standard output; fail the test if it does not exit with 0."""
    command = [sys.executable, str(file), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, cwd=ROOT)
    assert done.returncode == 0, f"{file.name} {' '.join(flags)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def assert_prints_figures(file: Path) -> None:
    """Run the benchmark with --quick: its last line must be one JSON object with at least one finite number."""
    lines = run(file, "--quick").splitlines()
    figures = json.loads(lines[-1])
    assert isinstance(figures, dict), lines[-1]
    if isinstance(figures.get("skipped"), str):
        pytest.skip(figures["skipped"])
    assert any(math.isfinite(number) for number in _numbers(figures)), lines[-1]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for element in value:
            yield from _numbers(element)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
