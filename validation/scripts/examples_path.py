"""Importing this lets scripts here use the examples' shared modules (the job, initial values, data)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
