"""Processes on the hosts: started in their namespaces, read line by line, and ended together."""

import contextlib
import os
import selectors
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["Process", "follow", "start"]

Show = Callable[[str, str], None]
"""Called with a host's name and a line it printed."""

_POLL_S = 0.1
_AFTER_FAILURE_S = 10.0
"""How long the others may go on once a host has failed: they should notice by themselves, and say what they saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The command running on one host."""

    host: str
    popen: "subprocess.Popen[bytes]"


def start(
    host: str, command: Sequence[str], *, namespace: str, group: Path | None, environment: Mapping[str, str]
) -> Process:
    """Run a command inside a host.

    It gets the host's network, its name, and process ids of its own: when the first of them goes, or when this process
    dies by whatever signal, the kernel ends all that the command ever started.
    """
    name_it = 'echo "$0" >/proc/sys/kernel/hostname; "$@"; exit $?'
    apart = ("unshare", "--uts", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", name_it, host)
    words = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", namespace, *apart, *command]
    if group is not None:
        # Joined before the namespace is entered: inside it /sys is another.
        words = ["sh", "-c", f'echo $$ >{shlex.quote(str(group))} && exec "$@"', "sh", *words]
    popen = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,  # Ctrl-C goes to this process alone, which ends the others in order
    )
    return Process(host=host, popen=popen)


def follow(processes: Sequence[Process], *, show: Show, timeout_s: float | None) -> bool:
    """Show what the hosts print until all have ended. False: they were not done in time, or some outlived a failure."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    failed = False
    with _Lines(processes, show) as lines:
        while lines.is_open:
            lines.read(_POLL_S)
            if not failed and any(process.popen.poll() for process in processes):
                failed = True
                soon = time.monotonic() + _AFTER_FAILURE_S
                deadline = soon if deadline is None else min(deadline, soon)
            if deadline is not None and time.monotonic() > deadline:
                return False
    for process in processes:
        process.popen.wait()
    return True


class _Lines:
    """The hosts' output, cut into lines."""

    def __init__(self, processes: Sequence[Process], show: Show) -> None:
        self._show = show
        self._selector = selectors.DefaultSelector()
        self._parts: dict[str, bytes] = {}
        for process in processes:
            assert process.popen.stdout is not None
            self._parts[process.host] = b""
            self._selector.register(process.popen.stdout, selectors.EVENT_READ, (process.host, process.popen.stdout))

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    @property
    def is_open(self) -> bool:
        return bool(self._selector.get_map())

    def read(self, timeout_s: float) -> None:
        """Show the lines that are there, waiting at most `timeout_s` for the first."""
        for key, _ in self._selector.select(timeout_s):
            self._take(*key.data)

    def _take(self, host: str, stream: IO[bytes]) -> None:
        chunk = b""
        with contextlib.suppress(OSError):
            chunk = os.read(stream.fileno(), 65536)
        *lines, self._parts[host] = (self._parts[host] + chunk).split(b"\n")
        if not chunk:
            self._selector.unregister(stream)
            stream.close()
            lines = [self._parts[host]] if self._parts[host] else []
        for line in lines:
            self._show(host, line.decode(errors="replace").rstrip("\r"))
