"""Start processes on the hosts, and follow their output line by line until all have ended."""

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

__all__ = ["HostProcess", "Show", "follow", "start"]

Show = Callable[[str, str], None]
"""Called with a host's name and a line it printed."""

_POLL_S = 0.1
_AFTER_FAILURE_S = 10.0
"""How long the other hosts may continue once one has failed: they should notice themselves, and print what they saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """The command running on one host."""

    host: str
    popen: "subprocess.Popen[bytes]"


def start(
    host: str, command: Sequence[str], *, namespace: str, group: Path | None, environment: Mapping[str, str]
) -> HostProcess:
    """Start a command on a host.

    It gets the host's network, host name and process id namespace. When its first process ends, or when this process
    dies by any signal, the kernel ends everything that the command started.
    """
    set_name = 'echo "$0" >/proc/sys/kernel/hostname; "$@"; exit $?'
    unshare = ("unshare", "--uts", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", set_name, host)
    words = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", namespace, *unshare, *command]
    if group is not None:
        # Join the group before entering the namespace, which has another /sys.
        words = ["sh", "-c", f'echo $$ >{shlex.quote(str(group))} && exec "$@"', "sh", *words]
    popen = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the others in order
    )
    return HostProcess(host=host, popen=popen)


def follow(processes: Sequence[HostProcess], *, show: Show, timeout_s: float | None) -> bool:
    """Show the hosts' output until all have ended; return False on timeout, or if some outlive another's failure."""
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
    """The hosts' output, split into lines."""

    def __init__(self, processes: Sequence[HostProcess], show: Show) -> None:
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
        """Show the available lines, waiting at most `timeout_s` for the first."""
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
