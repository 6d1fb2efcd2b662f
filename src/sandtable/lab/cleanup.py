"""Remove what a killed lab left behind, and end the processes in a lab's namespaces.

A lab's namespaces, control groups and hosts files carry its owner's process id and start time (`network.new_prefix`).
The next lab finds those whose owner is dead.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable

from sandtable.lab import cores, iproute
from sandtable.lab.network import HOSTS_FILES, is_abandoned, remove_namespace

__all__ = ["end_processes", "remove_abandoned_labs"]


def remove_abandoned_labs() -> list[str]:
    """Remove everything of labs whose owner is dead, and return the names removed."""
    listed = (iproute.try_call("ip", "netns", "list") or "").splitlines()
    files = [entry.name for entry in os.scandir(HOSTS_FILES)] if HOSTS_FILES.is_dir() else []
    names = {words[0] for line in listed if (words := line.split())} | set(files)
    namespaces = sorted(filter(is_abandoned, names))
    end_processes(namespaces, grace_s=0)
    for namespace in namespaces:
        remove_namespace(namespace)
    groups = sorted(filter(is_abandoned, cores.list_groups()))
    for group in groups:
        cores.remove_group(group)
    return sorted({*namespaces, *groups})


def end_processes(namespaces: Iterable[str], *, grace_s: float) -> None:
    """End every process in the namespaces: SIGTERM, then SIGKILL after `grace_s`."""
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
    """Signal every process in the namespaces, and return how many there are."""
    pids = [pid for namespace in namespaces for pid in iproute.processes_in(namespace)]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)
