"""The protocol between the launcher and the processes that become ranks: one pickled message per packet of a socket.

The fork server forks ranks on request. A process that the script started itself offers itself (see
`child_processes.py`). All are processes of one user on one machine, and descendants of the launcher.
"""

import pickle
import socket
from dataclasses import dataclass

from sandtable.vgpu.settings import RankTask

__all__ = [
    "MAX_MESSAGE_BYTES",
    "MODULES_FILE",
    "SCRIPT_FILE",
    "BeginLaunch",
    "CommandStarted",
    "EndLaunch",
    "ImportsRefused",
    "ImportsShared",
    "KillRanks",
    "LoadFailed",
    "RankEnded",
    "RankExited",
    "RankForked",
    "RankOffered",
    "Ready",
    "ReleaseProcess",
    "ScriptRelaunched",
    "ShareImports",
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

MODULES_FILE = "modules.pickle"
"""In the directory of a launch: the `ImportedModule`s of its template."""


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
class ShareImports:
    """Make a template with the modules of the launch's `MODULES_FILE`; requests for it come over the socket given.

    It begins as the rank of `task` would. Answered with `ImportsShared` or `ImportsRefused`, over the launcher's own
    socket, as are all requests.
    """

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


# ---- between the launcher and a process that the script started ----


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOffered:
    """A process that the script started would be a rank. Answered with `StartRank` or `ReleaseProcess`.

    It is the process number `index` of the `launch`-th launch on its node. `num_processes` is how many that launch
    starts, if it is known when they start. `rank` and `world_size` are what the script itself says, or -1.
    """

    node: int
    launch: int
    index: int
    num_processes: int
    rank: int
    world_size: int
    process: int
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnded:
    """The rank has ended, but its process has started others, which would end with it: it waits to be released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRelaunched:
    """The script has started itself again as the other ranks of its node, and gives each these variables."""

    world_size: int
    rank_variables: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStarted:
    """The script starts a launch command, with these variables besides its own."""

    words: tuple[str, ...]
    variables: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseProcess:
    """The launch is over, and the process is not needed any more: it ends."""


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
class ImportsShared:
    """A template has imported the modules, and forks ranks on request."""

    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportsRefused:
    """There is no template, because ranks cannot share the imports."""

    reason: str


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
