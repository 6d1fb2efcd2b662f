"""The room as a whole."""

import os
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"


def test_splits_are_planned_without_torch():
    code = "import sys, sandtable.planner, sandtable.pipeline_profile; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(SRC)}, check=True)
