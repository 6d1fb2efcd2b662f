"""Shared by the lab's tests: whether a lab can be built, and what one has left on the system."""

import os
import subprocess
from pathlib import Path

import pytest

from sandtable.lab import missing
from sandtable.lab.cores import list_groups

needs_lab = pytest.mark.skipif(bool(missing()), reason=missing())


def lab_remains(pid: int | None = None) -> list[str]:
    """Return the namespaces, hosts files and control groups of the labs of process `pid` (default: this one)."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    files = Path("/etc/netns")
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    names += [entry.name for entry in files.iterdir()] if files.is_dir() else []
    prefix = f"sandtable-{os.getpid() if pid is None else pid}-"
    return sorted(name for name in {*names, *list_groups()} if name.startswith(prefix))
