"""A host's share of this machine's processors, held by a control group.

Four hosts on two cores would each compute fast while the others wait and slowly while they do not: no such cluster
exists. With a quota each host is a slow machine of its own, at the same speed all the time. The quota is dealt out
every 10 ms, which is short beside an operator worth timing and long beside the kernel's tick.
"""

import contextlib
import os
import time
from pathlib import Path

from sandtable.errors import LabError

__all__ = ["confine", "groups", "num_cores", "release"]

PERIOD_US = 10_000
MIN_QUOTA_US = 1_000
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0))


def confine(name: str, cores: float) -> Path:
    """A control group that may use `cores` processors; returns the file that a process joins it by.

    It goes before processes outside: the quota bounds what it takes, and a host's speed must not depend on neighbours.
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
            f"a host's share of the processors ({cores:g} cores) must be held by a control group, but {error}; "
            "mount the cpu controller under /sys/fs/cgroup, or run without a share (--cores-per-host 0)"
        ) from None
    return group / "cgroup.procs"


def groups() -> list[str]:
    """Names of all control groups beside those the lab makes."""
    try:
        return [entry.name for entry in os.scandir(_root()) if entry.is_dir()]
    except (OSError, LabError):
        return []


def release(name: str) -> None:
    """Remove a group if there is one. Its processes are dead, but the kernel may take a moment to forget them."""
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
        "a host's share of the processors must be held by a control group, but there is no cpu controller under "
        "/sys/fs/cgroup; mount it, or run without a share (--cores-per-host 0)"
    )
