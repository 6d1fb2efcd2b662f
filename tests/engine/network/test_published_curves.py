"""Planned times against what others measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "collectives.py"


@pytest.fixture(scope="module")
def figures():
    done = subprocess.run([sys.executable, BENCH], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_mean_error_of_predictions_is_small(figures):
    assert figures["n"] == 330
    assert figures["predicted_mean_abs_pct"] < 10
    assert figures["unseen_mean_abs_pct"] < 8


def test_only_the_named_curves_are_calibrated_on(figures):
    calibrated = {name for name, figure in figures["curves"].items() if figure["calibrated"]}
    expected = {f"vtrain-{gpu}-{count}" for gpu in ("a100", "v100") for count in (2, 4, 8)} | {"a100-8", "h100-8"}
    assert calibrated == expected


def test_every_curve_but_those_on_blackwell_is_within_15_percent(figures):
    for name, figure in figures["curves"].items():
        if name not in ("b200-8", "b200-32-efa"):
            assert figure["mean_abs_pct"] < 15, name
