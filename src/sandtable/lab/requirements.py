"""What a machine must have for a lab, and one line for each thing it has not."""

import os
import shutil
import sys

from sandtable.errors import LabError

__all__ = ["missing", "require"]

PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "setpriv": "util-linux"}
"""Programs the lab calls, with the Debian package of each."""


def require() -> None:
    """Raise LabError unless a lab can be built here."""
    if lacking := missing():
        raise LabError(lacking)


def missing() -> str:
    """One line: the first thing missing, and the remedy. Empty: a lab can be built."""
    if sys.platform != "linux":
        return f"a lab must be run on Linux (its hosts are network namespaces), but this is {sys.platform}; use Linux"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            remedy = f"install {package} (Debian, Ubuntu: apt-get install {package})"
            return f"a lab must have the program '{program}', but it was not found on the path; {remedy}"
    if os.geteuid() != 0:
        return f"a lab must be run as root (it makes network namespaces), but the user id is {os.geteuid()}; use sudo"
    return ""
