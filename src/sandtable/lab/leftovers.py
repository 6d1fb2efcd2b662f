"""What a lab left behind because its process was killed: found by name, ended and removed by the next one."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable

from sandtable.lab import cores, iproute
from sandtable.lab.names import is_abandoned
from sandtable.lab.network import HOSTS_FILES, remove_namespace

__all__ = ["end_processes", "sweep"]


def sweep() -> list[str]:
    """Remove everything of labs whose owner is dead; returns the names removed."""
    listed = (iproute.try_call("ip", "netns", "list") or "").splitlines()
    files = [entry.name for entry in os.scandir(HOSTS_FILES)] if HOSTS_FILES.is_dir() else []
    namespaces = {words[0] for line in listed if (words := line.split())} | set(files)
    left = sorted(filter(is_abandoned, namespaces))
    end_processes(left, grace_s=0)
    for name in left:
        remove_namespace(name)
    left_groups = sorted(filter(is_abandoned, cores.groups()))
    for name in left_groups:
        cores.release(name)
    return sorted({*left, *left_groups})


def end_processes(namespaces: Iterable[str], *, grace_s: float) -> None:
    """End every process in the namespaces, wherever it has put itself: SIGTERM, then after `grace_s` SIGKILL."""
    names = tuple(namespaces)
    if grace_s:
        _signal(names, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and any(map(iproute.processes_in, names)):
            time.sleep(0.05)
    for _ in range(40):  # a process may be starting another while it is killed
        if not _signal(names, signal.SIGKILL):
            return
        time.sleep(0.05)


def _signal(namespaces: Iterable[str], number: signal.Signals) -> int:
    """Send a signal to all, and say to how many."""
    found = [pid for name in namespaces for pid in iproute.processes_in(name)]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(found)
