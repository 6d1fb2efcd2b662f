"""Compatibility: what differs, in Python, between releases of torch; `csrc/compatibility.h` holds the C++ half."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from sandtable.errors import BuildError

__all__ = [
    "KNOWN_RELEASES",
    "NCCL_GROUPS",
    "apply_function",
    "installed_torch",
    "is_cuda_build",
    "known_releases",
    "leave_out_flight_recorder",
    "release_of",
    "remove_python_kernels",
    "torch_directory",
]

KNOWN_RELEASES = ((2, 12), (2, 13), (2, 14), (2, 15))
"""The releases whose CPU and CUDA builds are tested; another one is tried, see `self_test`."""

NCCL_GROUPS = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
"""Process groups over NCCL; 2.12 and 2.13 have only the first."""


def torch_directory() -> Path:
    """Return the directory of torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("torch must be installed, but it is not; pip install torch")
    return Path(spec.submodule_search_locations[0])


def installed_torch() -> str:
    """Return the version of torch with its build ("2.13.0+cu130"), which its package's version may leave out."""
    file = torch_directory() / "version.py"
    found = re.search(r"^__version__ *= *['\"]([^'\"]+)", file.read_text(), re.MULTILINE)
    assert found is not None, f"{file} names no version"
    return found[1]


def release_of(version: str) -> tuple[int, int]:
    """Return the release that a version belongs to: (2, 13) of "2.13.0+cu130"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def known_releases() -> str:
    """Return the known releases, as a message names them."""
    return ", ".join(f"{major}.{minor}" for major, minor in KNOWN_RELEASES)


def is_cuda_build() -> bool:
    """Return whether torch has kernels for real cards."""
    return (torch_directory() / "lib" / "libtorch_cuda.so").exists()


def apply_function(function: type) -> Callable[..., Any]:
    """Return ``torch.autograd.Function.apply`` as a plain function of a class and its arguments."""
    descriptor = function.__dict__["apply"]
    if isinstance(descriptor, classmethod):
        return descriptor.__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:  # from 2.14 on it is a method of C
        return descriptor.__get__(None, cls)(*args, **kwargs)

    return apply  # Dynamo knows an alias of it, such as `relu = ReLU.apply`, by its name


def leave_out_flight_recorder(c10d: ModuleType) -> None:
    """Have process groups come without a flight recorder, which from 2.15 on hooks into every collective."""
    if hasattr(c10d, "_maybe_attach_flight_recorder"):
        setattr(c10d, "_maybe_attach_flight_recorder", lambda *_: None)  # noqa: B010 - only newer releases have it


def remove_python_kernels() -> None:
    """Remove the kernels for a card that torch itself writes in Triton and the like, and registers when imported."""
    from torch._native import registry

    registry.deregister_op_overrides(disable_dispatch_keys="CUDA")
