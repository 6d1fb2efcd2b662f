"""Run `ip` and `tc`, and turn their failures into errors."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from sandtable.errors import LabError

__all__ = ["HostTraffic", "call", "call_many", "processes_in", "read_traffic", "try_call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """Bytes (with Ethernet headers) and packets, as counted by a host's or a site's interface.

    A packet may exceed the wire's 1500 bytes: the kernel passes large segments on in one piece, as it does to network
    cards that split them themselves.
    """

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int

    def __sub__(self, before: "HostTraffic") -> "HostTraffic":
        return HostTraffic(
            sent_bytes=self.sent_bytes - before.sent_bytes,
            received_bytes=self.received_bytes - before.received_bytes,
            sent_packets=self.sent_packets - before.sent_packets,
            received_packets=self.received_packets - before.received_packets,
        )


def call(*command: str, lines: Sequence[str] | None = None) -> str:
    """Run a command, with `lines` as its standard input, and return its output.

    Raises LabError with the command and its own message if it fails.
    """
    stdin = None if lines is None else "\n".join([*lines, ""])
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(
            f"'{' '.join(command)}' must succeed to build the lab, but it failed: {done.stderr.strip()}; "
            "the kernel needs network namespaces, veth, bridge and sch_tbf, and this process the right to create them"
        )
    return done.stdout


def call_many(namespace: str, commands: Sequence[str]) -> None:
    """Run many `ip` commands in a namespace, in one process."""
    call("ip", "-n", namespace, "-batch", "-", lines=commands)


def try_call(*command: str) -> str | None:
    """Run a command that may fail, such as removing what is already gone; return None if it does."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout


def read_traffic(namespace: str, interface: str) -> HostTraffic:
    """Read the interface's counters."""
    (link,) = json.loads(call("ip", "-n", namespace, "-s", "-json", "link", "show", "dev", interface))
    sent, received = link["stats64"]["tx"], link["stats64"]["rx"]
    return HostTraffic(
        sent_bytes=sent["bytes"],
        received_bytes=received["bytes"],
        sent_packets=sent["packets"],
        received_packets=received["packets"],
    )


def processes_in(namespace: str) -> list[int]:
    """Return the ids of the processes in a namespace; none if there is no such namespace."""
    return [int(pid) for pid in (try_call("ip", "netns", "pids", namespace) or "").split()]
