"""Self-test: does the virtual GPU work on the torch that is installed?

The releases that are known to work are tested before they are listed. Any other one is tried: the core is compiled,
and a job of a few seconds runs on two virtual ranks, until it has passed once per build of torch and of the core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from sandtable.errors import BuildError
from sandtable.vgpu.build import core_path
from sandtable.vgpu.compatibility import (
    KNOWN_RELEASES,
    installed_torch,
    is_cuda_build,
    known_releases,
    release_of,
)

__all__ = ["SelfTest", "require_known_or_tried", "self_test"]

_TIME_LIMIT_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """Whether the virtual GPU works on one build of torch; `seconds` does not include compiling the core."""

    torch_version: str
    build: Literal["cpu", "cuda"]
    is_known_release: bool
    passed: bool
    seconds: float
    message: str


def self_test(*, again: bool = False) -> SelfTest:
    """Try the virtual GPU on the installed torch, in at most 20 s once its core is compiled.

    A test that passed is kept, and its result returned for the same build, unless `again`. Raises BuildError if the
    core cannot be compiled.
    """
    core = core_path()
    kept = core.with_name("self-test.json")
    if not again and kept.exists():
        return SelfTest(**json.loads(kept.read_text()))
    version = installed_torch()
    start = time.monotonic()
    message = _try(core)
    result = SelfTest(
        torch_version=version,
        build="cuda" if is_cuda_build() else "cpu",
        is_known_release=release_of(version) in KNOWN_RELEASES,
        passed=not message,
        seconds=round(time.monotonic() - start, 1),
        message=message or "two ranks trained with DDP and FSDP",
    )
    if result.passed:  # a failure may be the machine's: it is tried again
        kept.write_text(json.dumps(asdict(result)))
    return result


def require_known_or_tried() -> None:
    """Try a torch whose release is not known, once, and report the result in one line; raise BuildError if it fails."""
    version = installed_torch()
    if release_of(version) in KNOWN_RELEASES:
        return
    is_first = not core_path().with_name("self-test.json").exists()
    result = self_test()
    if not result.passed:
        raise BuildError(
            f"the virtual GPU must pass its self-test on torch {version}, but it does not: {result.message}; "
            f"install a release that is known to work ({known_releases()})"
        )
    if is_first:
        print(
            f"sandtable: torch {version} is not among the known releases ({known_releases()}); "
            f"the self-test passed in {result.seconds:.0f} s",
            file=sys.stderr,
        )


def _try(core: Path) -> str:
    """Run the job in a process of its own, which can be ended whatever it does; return what went wrong."""
    command = [sys.executable, "-m", "sandtable.vgpu.self_test_run", str(core)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"it took longer than {_TIME_LIMIT_SECONDS} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return "" if done.returncode == 0 else lines[-1]
