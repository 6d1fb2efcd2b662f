"""Calls of `ip` and `tc`, with what they answered when it went wrong."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from sandtable.errors import LabError

__all__ = ["call", "call_many", "link_of", "processes_in", "try_call"]


def call(*words: str, lines: Sequence[str] | None = None) -> str:
    """Run a command and return what it printed; LabError with the command and its own message if it failed.

    `lines` are what it reads.
    """
    given = None if lines is None else "\n".join([*lines, ""])
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(
            f"'{' '.join(words)}' must succeed to build the lab, but it said: {done.stderr.strip()}; "
            "the kernel needs network namespaces, veth, bridge and sch_tbf, and this process the right to make them"
        )
    return done.stdout


def call_many(namespace: str, commands: Sequence[str]) -> None:
    """Many commands of `ip` in a namespace, by one process."""
    call("ip", "-n", namespace, "-batch", "-", lines=commands)


def try_call(*words: str) -> str | None:
    """The same where failing is no error: what is to be removed may be gone. None: it failed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout


def link_of(namespace: str, interface: str) -> dict[str, Any]:
    """What `ip` knows of an interface, with its counters."""
    (link,) = json.loads(call("ip", "-n", namespace, "-s", "-json", "link", "show", "dev", interface))
    found: dict[str, Any] = link
    return found


def processes_in(namespace: str) -> list[int]:
    """Ids of the processes that live in a namespace; none if there is no such namespace."""
    return [int(word) for word in (try_call("ip", "netns", "pids", namespace) or "").split()]
