"""Names of what a lab leaves on the system while it runs: `sandtable-<pid>-<start>-<number>-<host>`.

The process that owns the lab is in the name, with the moment it was started, so that anyone can tell whether it still
lives: a process id comes round again, but not with the same start.
"""

import itertools
import os
import re
from pathlib import Path

__all__ = ["is_abandoned", "new_prefix"]

_PATTERN = re.compile(r"^sandtable-(\d+)-(\d+)-\d+-")
_numbers = itertools.count()


def new_prefix() -> str:
    """A prefix no other lab on this machine uses, and that names this process as the owner."""
    return f"sandtable-{os.getpid()}-{_start_of(os.getpid())}-{next(_numbers)}-"


def is_abandoned(name: str) -> bool:
    """Whether `name` belongs to a lab whose owner is dead."""
    match = _PATTERN.match(name)
    return match is not None and _start_of(int(match[1])) != match[2]


def _start_of(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if there is no such process, or only its corpse."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The second field is the program's name in brackets, and may hold blanks and brackets itself.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
