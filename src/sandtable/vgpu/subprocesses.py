"""Programs that a script starts with `subprocess`, `os.exec` or a shell.

Most are harmless: git, compilers, probes of the machine. Three kinds are not:

- The script starts itself again, once per further GPU of the node, and tells each process its rank in the environment,
  as Lightning and Fabric do. The processes started so far only wait; when this one joins the world, the launcher
  learns how many there are, and begins again with all of them as ranks.
- The script starts a launcher, as the commands of many frameworks do (`tune run`, `axolotl train`). The launcher of the
  job learns the command, and begins again with what it would start.
- A rank starts another program that trains. Nobody would record it, so it is rejected.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sandtable.vgpu.failures import is_library, script_place
from sandtable.vgpu.fork_protocol import CommandStarted
from sandtable.vgpu.stop import ProcessRejected

__all__ = ["PROGRAM_EVENTS", "Subprocesses", "training_command"]

PROGRAM_EVENTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")
"""The audit events of programs that start."""

_WAIT_FOREVER = ("sleep", "infinity")
_LAUNCHERS = ("torchrun", "deepspeed", "composer")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
    "composer.cli.launcher",
)
_PYTHON = re.compile(r"python[\d.]*$")
_FRAMEWORK = re.compile(
    r"^\s*(?:import|from)\s+(?:torch|lightning|pytorch_lightning|accelerate|deepspeed|transformers)\b", re.MULTILINE
)
_TRAINING = re.compile(r"\bcuda\b|torch\.distributed|Accelerator\(|Trainer\(|Fabric\(|deepspeed")


class Subprocesses:
    """Programs that this process starts. `has_started_ranks` if some are the script again, as ranks."""

    def __init__(self, *, may_start_ranks: bool, hand_over: Callable[[CommandStarted], None]) -> None:
        self._may_start_ranks = may_start_ranks
        self._hand_over = hand_over
        self._own_environment = dict(os.environ)
        self._rank_environments: list[dict[str, str]] = []

    @property
    def has_started_ranks(self) -> bool:
        return bool(self._rank_environments)

    def rank_variables(self) -> tuple[dict[str, str], ...]:
        """Return what the script adds to the environment of each rank of this node: this process, and those started."""
        return tuple(
            {name: value for name, value in environment.items() if self._own_environment.get(name) != value}
            for environment in (dict(os.environ), *self._rank_environments)
        )

    def install(self) -> None:
        """Have a program that is the script again, as a rank, only wait."""
        original = subprocess.Popen.__init__

        def popen(process: Any, args: Any, *rest: Any, **options: Any) -> None:
            environment = options.get("env") or os.environ
            if self._is_rank(args, environment):
                self._rank_environments.append(dict(environment))
                args = _WAIT_FOREVER
            original(process, args, *rest, **options)

        subprocess.Popen.__init__ = popen  # type: ignore[method-assign, assignment]

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hand over a launch command that starts; raise ProcessRejected for another program that trains."""
        words = training_command(_command_of(event, arguments))
        if words is None:
            return
        environment = arguments[-1] if event != "os.system" else None
        self.start_launcher(words, environment if isinstance(environment, Mapping) else os.environ)
        training, (file, line) = shlex.join(words), script_place()
        raise ProcessRejected(
            f"starts '{training}', which would train outside the virtual GPUs",
            file=file,
            line=line,
            remedy=f"rehearse that command by itself: sandtable run -- {training}",
            rule="nested-launcher" if _is_launcher(words) else "process-rejected",
        )

    def start_launcher(self, words: Sequence[str], environment: Mapping[Any, Any]) -> None:
        """Hand over the command if it is one that can be read, and this process may start ranks; else return."""
        if not self._may_start_ranks or not _is_launcher(words):
            return
        named = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
        changed = {name: value for name, value in named.items() if self._own_environment.get(name) != value}
        self._hand_over(CommandStarted(words=tuple(words), variables=changed))

    def _is_rank(self, args: Any, environment: Mapping[str, str]) -> bool:
        """Return whether the command is this script again, with a rank of its own."""
        if not self._may_start_ranks or isinstance(args, str | bytes | os.PathLike):
            return False
        command = [os.fsdecode(argument) for argument in args]
        names_rank = environment.get("LOCAL_RANK", "0") != os.environ.get("LOCAL_RANK", "0")
        return names_rank and environment.get("WORLD_SIZE", "1") != "1" and _script_of(command) == _own_script()


def training_command(command: Sequence[str]) -> list[str] | None:
    """Return the part of the command that trains: a launcher, or Python with a script that uses GPUs; else None."""
    words = list(command)
    if len(words) == 3 and words[1] == "-c" and os.path.basename(words[0]) in ("sh", "bash"):
        words = _shell_words(words[2])
    for place, word in enumerate(words):
        program, rest = os.path.basename(word), words[place + 1 :]
        is_launcher = program in _LAUNCHERS or (program == "accelerate" and rest[:1] == ["launch"])
        if is_launcher or (_PYTHON.match(program) and _trains(_script_of(words[place:]))):
            return [program, *rest]
    return None


def _is_launcher(words: Sequence[str]) -> bool:
    return not _script_of(words) or _script_of(words).removeprefix("-m ") in _LAUNCHER_MODULES


def _command_of(event: str, arguments: tuple[Any, ...]) -> list[str]:
    if event == "os.system":
        return _shell_words(os.fsdecode(arguments[0]))
    argv = arguments[1]
    argv = [argv] if isinstance(argv, str | bytes | os.PathLike) else list(argv)
    return [os.fsdecode(argument) for argument in argv]


def _shell_words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _script_of(command: Sequence[str]) -> str:
    """Return the script that a Python command runs, as a path or as `-m module`; empty if it runs none."""
    if not command or not _PYTHON.match(os.path.basename(command[0])):
        return ""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return f"-m {next(words, '')}"
        if word == "-c":
            return ""
        if word in ("-W", "-X"):
            next(words, None)
        elif not word.startswith("-"):
            return os.path.abspath(word)
    return ""


def _own_script() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return os.path.abspath(sys.argv[0]) if spec is None else f"-m {spec.name.removesuffix('.__main__')}"


def _trains(script: str) -> bool:
    """Return whether the script is a launcher, or imports a framework and mentions GPUs or what trains on them."""
    module = script.removeprefix("-m ")
    if module in _LAUNCHER_MODULES:
        return True
    try:
        path = script
        if module != script:
            spec = find_spec(module)
            path = spec.origin or "" if spec is not None else ""
        is_script = path.endswith(".py") and not is_library(path)
        text = Path(path).read_text(encoding="utf-8", errors="replace") if is_script else ""
    except (OSError, ImportError, ValueError):
        return False
    return bool(_FRAMEWORK.search(text) and _TRAINING.search(text))
