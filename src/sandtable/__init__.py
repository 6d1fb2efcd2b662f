"""sandtable: rehearse a training run on virtual GPUs before paying for real ones.

    import sandtable

    run = sandtable.rehearse("train.py", "--batch-size", "32", cluster="dgx-h100", nodes=16, steps=2)
    run.step_seconds, run.findings
    run.on("dgx-a100").step_seconds             # no new capture
    run.save("out"); sandtable.load("out")      # the same object again

Names are imported when they are first used: importing this package alone takes milliseconds, and torch is imported only
in the processes that run a script. docs/api.md is a walk through all of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandtable.cluster import Cluster
    from sandtable.cluster import load as load_cluster
    from sandtable.cluster import names as cluster_names
    from sandtable.diagnosis import Diagnosis, diagnose
    from sandtable.engine import Timeline, WhatIf
    from sandtable.errors import SandtableError
    from sandtable.events import Event, Listener
    from sandtable.findings import Evidence, Finding, Severity
    from sandtable.kernel_cost import Kernel, cost
    from sandtable.lab import Lab
    from sandtable.planner import Knob, Plan, SearchOptions, SearchSpace, partition, plan, read_profile
    from sandtable.rehearsal import (
        CaptureStore,
        LaunchOptions,
        Rehearsal,
        calibrate,
        compare,
        load,
        rehearse,
        rehearse_command,
    )
    from sandtable.report import Summary, UserInputs
    from sandtable.step_marker import step
    from sandtable.study import run_study
    from sandtable.trace import Trace
    from sandtable.validation import validate
    from sandtable.version import __version__
    from sandtable.vgpu import Launcher

__all__ = [
    "CaptureStore",
    "Cluster",
    "Diagnosis",
    "Event",
    "Evidence",
    "Finding",
    "Kernel",
    "Knob",
    "Lab",
    "LaunchOptions",
    "Launcher",
    "Listener",
    "Plan",
    "Rehearsal",
    "SandtableError",
    "SearchOptions",
    "SearchSpace",
    "Severity",
    "Summary",
    "Timeline",
    "Trace",
    "UserInputs",
    "WhatIf",
    "__version__",
    "calibrate",
    "cluster_names",
    "compare",
    "cost",
    "diagnose",
    "load",
    "load_cluster",
    "partition",
    "plan",
    "read_profile",
    "rehearse",
    "rehearse_command",
    "run_study",
    "step",
    "validate",
]

_ROOM_OF = {
    "CaptureStore": "rehearsal",
    "Cluster": "cluster",
    "Diagnosis": "diagnosis",
    "Event": "events",
    "Evidence": "findings",
    "Finding": "findings",
    "Kernel": "kernel_cost",
    "Knob": "planner",
    "Lab": "lab",
    "LaunchOptions": "rehearsal",
    "Launcher": "vgpu",
    "Listener": "events",
    "Plan": "planner",
    "Rehearsal": "rehearsal",
    "SandtableError": "errors",
    "SearchOptions": "planner",
    "SearchSpace": "planner",
    "Severity": "findings",
    "Summary": "report",
    "Timeline": "engine",
    "Trace": "trace",
    "UserInputs": "report",
    "WhatIf": "engine",
    "__version__": "version",
    "calibrate": "rehearsal",
    "cluster_names": "cluster.names",
    "compare": "rehearsal",
    "cost": "kernel_cost",
    "diagnose": "diagnosis",
    "load": "rehearsal",
    "load_cluster": "cluster.load",
    "partition": "planner",
    "plan": "planner",
    "read_profile": "planner",
    "rehearse": "rehearsal",
    "rehearse_command": "rehearsal",
    "run_study": "study",
    "step": "step_marker",
    "validate": "validation",
}
"""Where each name comes from; after a dot, what it is called there."""


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'sandtable' has no attribute '{name}'")
    room, _, other_name = _ROOM_OF[name].partition(".")
    value = getattr(importlib.import_module(f"sandtable.{room}"), other_name or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
