"""Processes: a few Linux calls that Python's library does not wrap, and what a process costs."""

import ctypes
import os
import signal

__all__ = [
    "adopt_orphans",
    "cpu_ticks",
    "die_with_parent",
    "kill_group",
    "private_bytes",
    "resident_bytes",
    "wants_core",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends, however it ends; 0 undoes that."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Adopt processes that descendants of this one leave behind, so that it can wait for them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_group(process: int) -> None:
    """Kill a process and all that it started, unless they are gone."""
    for kill in (os.killpg, os.kill):
        try:
            kill(process, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def private_bytes(process: int | str) -> int:
    """Return the memory that the process does not share; 0 if it is gone."""
    return sum(size for name, size in _rollup(process) if name.startswith(b"Private_"))


def resident_bytes(process: int | str) -> int:
    """Return the memory that the process occupies, shared or not; 0 if it is gone."""
    return sum(size for name, size in _rollup(process) if name == b"Rss:")


def cpu_ticks(process: int) -> int:
    """Return the processor time of all threads, in the kernel's ticks; 0 if the process is gone."""
    fields = _stat(process)
    return int(fields[11]) + int(fields[12]) if fields else 0


def wants_core(process: int) -> bool:
    """Return whether one of its threads computes, or would if it had a core, or reads a file.

    A program that it has started, such as a compiler, counts as well.
    """
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return False
    if any(_stat(f"{process}/task/{thread}")[:1] in ([b"R"], [b"D"]) for thread in threads):
        return True
    return any(wants_core(child) for thread in threads for child in _children(process, thread))


def _stat(process: int | str) -> list[bytes]:
    """Return the fields of /proc/*/stat of a process or thread, from its state on; none if it is gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _children(process: int, thread: str) -> list[int]:
    """Return the processes that a thread has started; none where the kernel does not list them."""
    try:
        with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def _rollup(process: int | str) -> list[tuple[bytes, int]]:
    try:
        with open(f"/proc/{process}/smaps_rollup", "rb") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []
    return [(row[0], int(row[1]) * 1024) for row in rows if len(row) == 3 and row[2] == b"kB"]


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
