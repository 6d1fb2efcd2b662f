"""Limit a host to a share of this machine's processors with a control group.

Without a limit, four hosts on two cores compute fast while others wait and slowly while they do not, which no cluster
does. With a quota each host is a slow machine of constant speed. The quota is granted every 10 ms, which is short
compared with an operator worth timing and long compared with the kernel's tick.
"""

import contextlib
import os
import time
from pathlib import Path

from sandtable.errors import LabError

__all__ = ["create_group", "list_groups", "num_cores", "remove_group"]

PERIOD_US = 10_000
MIN_QUOTA_US = 1_000
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0))


def create_group(name: str, cores: float) -> Path:
    """Create a control group that may use `cores` processors, and return the file through which a process joins it.

    The group takes precedence over other processes: its quota bounds it, and its speed must not depend on neighbours.
    """
    quota_us = max(MIN_QUOTA_US, round(cores * PERIOD_US))
    root = _root()
    group = root / name
    try:
        group.mkdir()
        if root == _V1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            (group / "cpu.shares").write_text("16384")
        else:
            with contextlib.suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            (group / "cpu.weight").write_text("1600")
    except OSError as error:
        raise LabError(
            f"a host's share of the processors ({cores:g} cores) needs a control group, but: {error}; "
            "mount the cpu controller under /sys/fs/cgroup, or run without a share (--cores-per-host 0)"
        ) from None
    return group / "cgroup.procs"


def list_groups() -> list[str]:
    """Return the names of the control groups at the level where labs create theirs."""
    try:
        return [entry.name for entry in os.scandir(_root()) if entry.is_dir()]
    except (OSError, LabError):
        return []


def remove_group(name: str) -> None:
    """Remove a group if it exists. Its processes are dead, but the kernel may need a moment to notice."""
    with contextlib.suppress(LabError):
        group = _root() / name
        for _ in range(100):
            try:
                group.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)


def _root() -> Path:
    if (_V1 / "cpu.cfs_quota_us").exists():
        return _V1
    if (_V2 / "cgroup.controllers").exists():
        return _V2
    raise LabError(
        "a host's share of the processors needs a control group, but there is no cpu controller under "
        "/sys/fs/cgroup; mount it, or run without a share (--cores-per-host 0)"
    )
