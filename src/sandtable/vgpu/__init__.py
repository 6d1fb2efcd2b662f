"""A GPU THAT IS NOT THERE: `launch(job)` runs an unmodified script on virtual GPUs and returns its `Trace`."""

from collections.abc import Callable
from typing import Any

from sandtable.vgpu.build import core_path
from sandtable.vgpu.launcher import launch
from sandtable.vgpu.output import TerminalView, View
from sandtable.vgpu.settings import Job

__all__ = ["Job", "TerminalView", "View", "core_path", "launch", "register_shape"]


def register_shape(operator: str, function: Callable[..., Any]) -> None:
    """Say what shape an operator's outputs have, where torch does not know.

    `operator` is its name with overload ("mylib::attention"), `function` takes its arguments in order, tensors on the
    meta device, and returns meta tensors shaped like its outputs. Outside a rehearsal this does nothing: a script may
    always call it.
    """
    import sys

    core = sys.modules.get("sandtable_core")
    if core is not None:
        core.register_shape(operator, function)
