"""`xformers.profiler`: profiles a few steps of a real run; there is nothing to profile in a rehearsal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["MemSnapshotsProfiler", "NsightProfiler", "PyTorchProfiler", "profile", "step"]


class PyTorchProfiler:
    """Profiles with torch's profiler."""

    ACTIVITIES: tuple[Any, ...] = ()

    def __init__(self, main_profiler: Any) -> None:
        self.main_profiler = main_profiler


class MemSnapshotsProfiler(PyTorchProfiler):
    """Takes snapshots of memory."""


class NsightProfiler(PyTorchProfiler):
    """Profiles with Nsight."""


@contextmanager
def profile(*args: Any, **options: Any) -> Iterator[None]:
    """Profile the block: do nothing."""
    yield


def step() -> None:
    """Begin the next step: do nothing."""
