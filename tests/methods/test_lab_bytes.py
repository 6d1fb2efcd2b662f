"""Bytes on the wire match the formulas, by the kernel's counters of a lab's cables."""

import json
import sys
from pathlib import Path

import pytest
from tests.lab.lab_state import needs_lab
from tests.methods.lab_bytes import COMBINATIONS

from sandtable.lab import Lab, LabPlan

_PROGRAM = Path(__file__).with_name("lab_bytes.py")


@needs_lab
@pytest.mark.slow
def test_bytes_on_the_cable_are_those_of_the_formula_within_a_hundredth(tmp_path):
    out, lines = tmp_path / "found", []
    with Lab(LabPlan.uniform(4, bandwidth_bytes_per_s=125e6)) as lab:
        result = lab.run([sys.executable, str(_PROGRAM), str(out)], show=lambda _, line: lines.append(line))
    assert result.exit_code == 0, "\n".join(lines)
    found = [json.loads(spec) for spec in out.read_text().splitlines()]
    assert len(found) == len(COMBINATIONS) + 1
    wrong = [(what, counted / formula) for what, formula, counted in found if not 0.99 < counted / formula < 1.01]
    assert not wrong
