"""What Python runs: a script, a notebook, a directory with `__main__.py`, or with `-m` a module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec

from sandtable.errors import LaunchError
from sandtable.launch.notebook import is_notebook, read_notebook

__all__ = ["require_module", "require_script"]


def require_script(script: str) -> None:
    """Reject a path that Python could not run."""
    if not os.path.exists(script):
        raise LaunchError(
            f"the script must be a file, but '{script}' does not exist; check the path, use -m for a module, or a "
            "launcher that can be read: torchrun, accelerate launch, deepspeed, fabric run, composer, srun, mpirun"
        )
    if os.path.isdir(script) and "__main__.py" not in os.listdir(script):
        raise LaunchError(
            f"the script must be a file, but '{script}' is a directory without __main__.py; name a file in it"
        )
    if is_notebook(script):
        read_notebook(script)


def require_module(name: str, search_path: Sequence[str] = ()) -> None:
    """Reject a module that `python -m` could not run from the working directory; nothing is imported.

    `search_path` holds directories besides those of this process.
    """
    paths = [os.getcwd(), *search_path]
    spec = _find_module(name, paths)
    if spec is None:
        raise LaunchError(
            f"the module must be importable from {os.getcwd()}, but '{name}' is not; check the name, install its "
            "package, or set PYTHONPATH"
        )
    if spec.submodule_search_locations is not None and _find_module(f"{name}.__main__", paths) is None:
        raise LaunchError(
            f"the module must be a file or a package with __main__.py, but '{name}' is a package without one; name a "
            "module in it"
        )


def _find_module(name: str, search_path: Sequence[str]) -> ModuleSpec | None:
    """Find a module as importing it would, one package after another."""
    parts = name.split(".")
    spec = PathFinder.find_spec(parts[0], list(search_path))
    if spec is None:
        try:
            spec = find_spec(parts[0])
        except ValueError:  # a module in memory that comes from no file
            return None
    for number in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join(parts[:number]), list(spec.submodule_search_locations))
    return spec
