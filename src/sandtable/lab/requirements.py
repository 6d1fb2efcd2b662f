"""What a lab requires of the machine, with a one-line message for whatever is missing."""

import os
import shutil
import sys

from sandtable.errors import LabError

__all__ = ["missing", "require"]

PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "setpriv": "util-linux"}
"""Programs that the lab calls, with their Debian packages."""


def require() -> None:
    """Raise LabError unless a lab can be built here."""
    if lacking := missing():
        raise LabError(lacking)


def missing() -> str:
    """Return one line with the first missing requirement and its remedy; empty if a lab can be built."""
    if sys.platform != "linux":
        return f"a lab requires Linux (its hosts are network namespaces), but this is {sys.platform}; use Linux"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            remedy = f"install {package} (Debian, Ubuntu: apt-get install {package})"
            return f"a lab requires the program '{program}', but it is not on the path; {remedy}"
    if os.geteuid() != 0:
        return f"a lab requires root (it creates network namespaces), but the user id is {os.geteuid()}; use sudo"
    return ""
