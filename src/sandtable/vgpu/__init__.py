"""A GPU THAT IS NOT THERE: `Launcher().launch(job)` runs an unmodified script on virtual GPUs and returns a `Trace`."""

from collections.abc import Callable
from typing import Any

from sandtable.vgpu.build import core_path
from sandtable.vgpu.classes import Limits
from sandtable.vgpu.launcher import CaptureResult, Launcher, launch, open_launcher, use_launcher
from sandtable.vgpu.routing import Routing
from sandtable.vgpu.self_testing import SelfTest, self_test
from sandtable.vgpu.settings import Job

__all__ = [
    "CaptureResult",
    "Job",
    "Launcher",
    "Limits",
    "Routing",
    "SelfTest",
    "core_path",
    "launch",
    "open_launcher",
    "register_shape",
    "self_test",
    "use_launcher",
]


def register_shape(operator: str, function: Callable[..., Any]) -> None:
    """Register the output shapes of an operator that torch has no shape for.

    `operator` is its name with overload ("mylib::attention"), `function` takes its arguments in order, tensors on the
    meta device, and returns meta tensors shaped like its outputs. Outside a rehearsal this does nothing, so
    a script may always call it.
    """
    import sys

    core = sys.modules.get("sandtable_core")
    if core is not None:
        core.register_shape(operator, function)
