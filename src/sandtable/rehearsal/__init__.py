"""THE WHOLE STORY: capture a script, simulate it, check it and summarise it, as one object.

    run = rehearse("train.py", "--batch-size", "32", cluster="dgx-h100", nodes=16, steps=2)
    run.step_seconds, run.findings, run.on("dgx-a100").step_seconds
    run.save("out"); load("out")

The command line, notebooks, searches and validation all go through here.
"""

from sandtable.rehearsal.calibration import calibrate
from sandtable.rehearsal.rehearsal import Rehearsal, compare, load
from sandtable.rehearsal.script import LaunchOptions, make_job, rehearse, rehearse_command, resolve_command
from sandtable.rehearsal.store import CaptureStore

__all__ = [
    "CaptureStore",
    "LaunchOptions",
    "Rehearsal",
    "calibrate",
    "compare",
    "load",
    "make_job",
    "rehearse",
    "rehearse_command",
    "resolve_command",
]
