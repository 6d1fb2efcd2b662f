"""A launch command, read and not executed: `parse_command(["torchrun", "--nproc-per-node", "8", "train.py"])`.

The first word selects the reader. Words that only prepare a command, such as `env`, `numactl` and `uv run`, are taken
off first;
launchers that start other launchers, such as srun, read what follows them with the same function.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Protocol

from sandtable.errors import LaunchError
from sandtable.launch.accelerate import parse_accelerate
from sandtable.launch.composer import parse_composer
from sandtable.launch.deepspeed import parse_deepspeed, parse_deepspeed_node
from sandtable.launch.environment import FixedEnvironment, LayeredEnvironment
from sandtable.launch.fabric import parse_fabric, parse_lightning
from sandtable.launch.mpi import parse_mpirun
from sandtable.launch.plan import LaunchPlan
from sandtable.launch.slurm import parse_srun
from sandtable.launch.torchrun import parse_torchrun

__all__ = ["is_launch_command", "parse_command"]


class _Reader(Protocol):
    """Reads the words after a launcher's name. `variables` are those that the launcher itself would find."""

    def __call__(self, words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan: ...


def is_launch_command(word: str) -> bool:
    """Return whether a command line that begins with `word` is a launch command, and not a script."""
    name = PurePath(word).name
    if PurePath(word).suffix in (".py", ".ipynb"):
        return False
    is_known = name in {*_READERS, *_OUTER_LAUNCHERS, *_PREFIXES, *_SCHEDULERS, *_PROJECT_MANAGERS, *_SHELLS}
    if is_known or _PYTHON.fullmatch(name) or _ASSIGNMENT.match(word) or name.endswith(".sh"):
        return True
    return not os.path.exists(word) and _console_script(word) is not None


def parse_command(words: Sequence[str], variables: Mapping[str, str] | None = None) -> LaunchPlan:
    """Return what the command would start. Nothing is executed, and no launcher needs to be installed.

    `variables` is the environment that the command is typed in, by default that of this process. Raises LaunchError if
    the command, or one of its options, is not known.
    """
    if variables is None:
        # It speaks of the GPUs of this machine, and not of the cluster's.
        variables = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if not words:
        raise LaunchError(f"a launch command must follow, but there is none; give {_FORMS}")
    word, rest = words[0], list(words[1:])
    name = PurePath(word).name
    if _ASSIGNMENT.match(word):
        variable, _, value = word.partition("=")
        plan = parse_command(rest, {**variables, variable: value})
        return replace(plan, environment=LayeredEnvironment((FixedEnvironment({variable: value}), plan.environment)))
    if name in _SHELLS or name.endswith(".sh"):
        raise LaunchError(
            f"the launch command itself must follow, but '{word}' runs a shell script; put `sandtable run --` before "
            "the command inside it"
        )
    if name in _READERS:
        return _READERS[name](rest, variables)
    if name in _OUTER_LAUNCHERS:
        return _OUTER_LAUNCHERS[name](rest, lambda inner: parse_command(inner, variables))
    if name in _PREFIXES and rest[:1] and not rest[0].startswith("-"):
        return parse_command(rest, variables)
    if name in _SCHEDULERS:
        behind_options = next((place for place, other in enumerate(rest) if is_launch_command(other)), len(rest))
        return parse_command(rest[behind_options:], variables)
    if name in _PROJECT_MANAGERS and rest[:1] == ["run"]:
        return _parse_project_command(name, rest[1:], variables)
    if _PYTHON.fullmatch(name):
        return _parse_python(rest, variables)
    program = _console_script(word)
    if program is not None:
        return _python_plan(program, rest)
    raise LaunchError(f"the command must be one that sandtable can read, but got '{' '.join(words[:2])}'; use {_FORMS}")


def _parse_accelerate_command(words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    if list(words[:1]) != ["launch"]:
        raise LaunchError(
            f"only `accelerate launch` starts a script, but got 'accelerate {' '.join(words)}'; add launch and a script"
        )
    return parse_accelerate(words[1:], variables)


def _parse_python(words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    """Read what `python` runs: a script, or a module, which may be a launcher."""
    position = 0
    while position < len(words) and _PYTHON_FLAG.fullmatch(words[position]):
        position += 2 if words[position] in _PYTHON_VALUES else 1
    entry, *rest = words[position:] or ("",)
    is_module = entry.startswith("-m")
    if is_module:
        entry, rest = (entry[2:], rest) if entry != "-m" else (rest[0] if rest else "", rest[1:])
    if not entry or entry.startswith("-"):
        raise LaunchError(f"python must be given a script or -m and a module, but got '{' '.join(words)}'; name one")
    if is_module and entry in _MODULE_READERS:
        return _MODULE_READERS[entry](rest, variables)
    return _python_plan(entry, rest, is_module=is_module)


def _python_plan(script: str, script_args: Sequence[str], *, is_module: bool = False) -> LaunchPlan:
    return LaunchPlan(
        launcher="python",
        script=script,
        script_args=tuple(script_args),
        is_module=is_module,
        is_plain=True,
        ranks_per_node=1,
    )


def _console_script(word: str) -> str | None:
    """Return the file of a command that a package has installed, such as `litgpt`, if it is Python; else None.

    It runs in this interpreter, so its own environment must be the one that sandtable is installed in.
    """
    path = shutil.which(word, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    if path is None:
        return None
    with open(path, "rb") as file:
        lines = file.read(512).splitlines()
    is_python = bool(lines) and lines[0].startswith(b"#!") and b"python" in b" ".join(lines[:2])
    return path if is_python else None


def _parse_project_command(manager: str, words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    """Read what `uv run` and its like start: in the project's environment, the one that sandtable is installed in."""
    words = words[1:] if list(words[:1]) == ["--"] else words
    if words and words[0].startswith("-"):
        raise LaunchError(
            f"the options of {manager} run must be left out, but got '{words[0]}'; ranks run in the environment that "
            "sandtable is installed in"
        )
    is_script = bool(words) and PurePath(words[0]).suffix == ".py"
    return _parse_python(words, variables) if is_script else parse_command(words, variables)


_READERS: dict[str, _Reader] = {
    "torchrun": parse_torchrun,
    "accelerate": _parse_accelerate_command,
    "accelerate-launch": parse_accelerate,
    "deepspeed": parse_deepspeed,
    "fabric": parse_fabric,
    "lightning": parse_lightning,
    "composer": parse_composer,
}
"""Launchers that start the ranks of a node, by the name of their command."""

_MODULE_READERS: dict[str, _Reader] = {
    "torch.distributed.run": parse_torchrun,
    "torch.distributed.launch": partial(parse_torchrun, is_launch=True),
    "accelerate": _parse_accelerate_command,
    "accelerate.commands.accelerate_cli": _parse_accelerate_command,
    "accelerate.commands.launch": parse_accelerate,
    "deepspeed": parse_deepspeed,
    "deepspeed.launcher.runner": parse_deepspeed,
    "deepspeed.launcher.launch": parse_deepspeed_node,
    "composer.cli.launcher": parse_composer,
}
"""The same launchers as `python -m` runs them."""

_OUTER_LAUNCHERS = {"srun": parse_srun, "mpirun": parse_mpirun, "mpiexec": parse_mpirun}
"""Launchers that start any command on many nodes."""

_PREFIXES = ("env", "nohup", "time", "exec", "command")
"""Words before a command that change nothing about what it starts."""

_SCHEDULERS = ("nice", "ionice", "chrt", "numactl", "taskset", "stdbuf", "setsid", "timeout")
"""Programs with options of their own that decide where or how long a command runs, and not what."""

_PROJECT_MANAGERS = ("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda", "mamba", "micromamba")

_SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "fish", "source", "eval")

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_FLAG = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].*|--check-hash-based-pycs")
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

_FORMS = (
    "torchrun, accelerate launch, deepspeed, fabric run, composer, srun, mpirun, python, or a command that a Python "
    "package has installed, each with its options"
)
