"""Importing this lets scripts here use the modules that examples share, such as the job."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
