"""WHAT A LAUNCH COMMAND STARTS: `parse_command(["torchrun", ...])` returns a `LaunchPlan`; nothing is executed.

A plan has the script, the number of nodes and ranks, and what each rank finds in its environment. There is one file per
launcher; `command.py` selects it.
"""

from sandtable.launch.command import is_launch_command, parse_command
from sandtable.launch.entry import require_module, require_script
from sandtable.launch.environment import (
    FixedEnvironment,
    LauncherEnvironment,
    LayeredEnvironment,
    RankPlace,
    visible_gpus,
)
from sandtable.launch.notebook import cell_lines, is_notebook, notebook_of, read_notebook
from sandtable.launch.own_ranks import NodeEnvironment, OwnEnvironment
from sandtable.launch.plan import LaunchPlan, World
from sandtable.launch.torchrun import OTHER_OPTIONS, TorchrunEnvironment, parse_nnodes, parse_nproc_per_node

__all__ = [
    "OTHER_OPTIONS",
    "FixedEnvironment",
    "LaunchPlan",
    "LauncherEnvironment",
    "LayeredEnvironment",
    "NodeEnvironment",
    "OwnEnvironment",
    "RankPlace",
    "TorchrunEnvironment",
    "World",
    "cell_lines",
    "is_launch_command",
    "is_notebook",
    "notebook_of",
    "parse_command",
    "parse_nnodes",
    "parse_nproc_per_node",
    "read_notebook",
    "require_module",
    "require_script",
    "visible_gpus",
]
