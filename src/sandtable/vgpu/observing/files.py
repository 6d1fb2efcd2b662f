"""Files: what a script writes and reads, by the audit events of Python, and what it saves with torch."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.failures import is_library
from sandtable.vgpu.observing.events import EventLog, after

__all__ = ["follow_files"]

_MOST_FILES = 2_000
_WRITES = os.O_WRONLY | os.O_RDWR
_SYSTEM = ("/dev/", "/proc/", "/sys/", "/tmp/torchinductor")
_CODE = (".py", ".pyc", ".so", ".lock")


def follow_files(log: EventLog, core: ModuleType) -> None:
    """Note which files are opened from now on, each the first times, and where checkpoints go."""
    import torch

    seen: dict[tuple[str, bool], int] = {}

    def on_open(event: str, arguments: tuple[Any, ...]) -> None:
        path, _, flags = arguments
        if isinstance(path, int) or path is None:
            return
        name = os.path.abspath(os.fsdecode(path))
        if name.startswith(_SYSTEM) or name.endswith(_CODE) or is_library(name):
            return
        writes = bool(flags & _WRITES)
        count = seen[name, writes] = seen.get((name, writes), 0) + 1
        if count <= 2 and len(seen) < _MOST_FILES:
            kind = EventKind.WRITE if writes else EventKind.READ
            log.note(kind, path=os.path.realpath(name), truncates=bool(flags & os.O_TRUNC))

    def on_save(result: None, what: Any, target: Any, *args: Any, **options: Any) -> None:
        path = target if isinstance(target, str | os.PathLike) else getattr(target, "name", None)
        if isinstance(path, str | os.PathLike):
            size = os.path.getsize(path) if os.path.exists(path) else 0
            log.note(EventKind.SAVE, path=os.path.realpath(os.fsdecode(path)), num_bytes=size)

    core.watch_audit_events(["open"], on_open)
    after(torch, "save", on_save)
