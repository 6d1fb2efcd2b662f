"""The protocol between the launcher and the fork server: one pickled message per packet of their socket.

Both ends are processes of one user on one machine, and the fork server is the launcher's child.
"""

import pickle
import socket
from dataclasses import dataclass

from sandtable.vgpu.settings import RankTask

__all__ = [
    "MAX_MESSAGE_BYTES",
    "SCRIPT_FILE",
    "BeginLaunch",
    "EndLaunch",
    "KillRanks",
    "LoadFailed",
    "RankExited",
    "RankForked",
    "Ready",
    "StartRank",
    "StopRanks",
    "UsageReported",
    "decode",
    "encode",
    "receive",
]

MAX_MESSAGE_BYTES = 1 << 17

SCRIPT_FILE = "script.pickle"
"""In the directory of a launch: its `ScriptSettings`, which a packet may be too small for."""


# ---- to the fork server ----


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginLaunch:
    """Ranks of a new launch follow. `directory` holds its files, among them the pickled `ScriptSettings`."""

    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRank:
    """Fork a rank. The rank's channel and its two output pipes come with the packet."""

    task: RankTask


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRanks:
    """Signal all ranks to stop and save their records, as torchrun does when one fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRanks:
    """End all ranks; each is reported with `RankExited`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLaunch:
    """The launch is over and its files are gone. Answered with `UsageReported`."""


# ---- from the fork server ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Everything is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    """The runtime did not load; `error` is set if it is one for the user."""

    error: Exception | None
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankForked:
    """A rank runs as this process."""

    rank: int
    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExited:
    """A rank's process has ended; a negative exit code is the number of a signal."""

    rank: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReported:
    """Processor time of the fork server and of all processes that ended under it."""

    core_seconds: float


def encode(message: object) -> bytes:
    """Encode one packet."""
    return pickle.dumps(message)


def decode(packet: bytes) -> object:
    """Decode one packet."""
    message: object = pickle.loads(packet)
    return message


def receive(control: socket.socket) -> object | None:
    """Wait for the next message; None if the other end is closed."""
    packet = control.recv(MAX_MESSAGE_BYTES)
    return decode(packet) if packet else None
