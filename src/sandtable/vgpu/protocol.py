"""The protocol between a captured rank and the launcher: typed messages, length-prefixed on a stream socket.

A message is a NamedTuple of plain values (tuples, strings, bytes, numbers, None). On the wire it is a tuple whose first
item is the message's tag. `marshal` is used for its speed, and because reading it runs no code; both ends are the same
interpreter.
"""

import marshal
import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, get_args

__all__ = [
    "Answer",
    "Call",
    "CallTuple",
    "CallsLogged",
    "FilesMade",
    "FilesRemoved",
    "FrameReader",
    "GatherAnswered",
    "GatherPosted",
    "GroupsMade",
    "ImportsLogged",
    "LoaderState",
    "Message",
    "NodeMemoryNamed",
    "PeerMet",
    "PortFound",
    "PortOwned",
    "PortRecorded",
    "PortWanted",
    "RankFailed",
    "RankSaved",
    "ReceiveAnswered",
    "ReceivePosted",
    "RemovedFile",
    "SendPosted",
    "StepEnded",
    "StopOrdered",
    "StoreAnswered",
    "StoreOperation",
    "StoreRequested",
    "ThreadWaiting",
    "pack",
]

CallTuple = tuple[int, int, str, str, int, str, int, int, int]
"""A `Call` as the C++ core builds it and as it is sent: its first fields, in their order."""


class Call(NamedTuple):
    """One collective or point-to-point call of a rank.

    `group` is the place in the rank's own list of groups. `seq` counts collectives per group, and point-to-point calls
    per group, peer, direction and tag. `num_bytes` is -1 where members may differ (uneven splits). `peer` is the other
    global rank of a point-to-point call, else -1. Root (a place in the group), reduce operator and splits are known of
    logged calls only.
    """

    group: int
    seq: int
    op: str
    dtype: str
    num_bytes: int
    file: str = ""
    line: int = 0
    peer: int = -1
    tag: int = 0
    root: int = -1
    reduce: str = ""
    splits: str = ""


class LoaderState(NamedTuple):
    """The last iteration over a data loader that began on this line: its batches so far, and whether it has ended."""

    file: str
    line: int
    num_batches: int
    is_exhausted: bool


# ---- from a rank ----


class GatherPosted(NamedTuple):
    """The rank enters a collective with `payload`. It waits for the answer unless `ticket` is 0.

    `host_time` are the fields of a `HostTime`, and `timeout_seconds` how long the group waits for all members.
    """

    ticket: int
    call: CallTuple
    payload: bytes | None
    host_time: tuple[float, float, str, int] = (0.0, 0.0, "", 0)
    timeout_seconds: float = 0.0


class ReceivePosted(NamedTuple):
    """The rank waits for a payload from the call's peer."""

    ticket: int
    call: CallTuple


class SendPosted(NamedTuple):
    """The rank sends a payload to the call's peer."""

    call: CallTuple
    payload: bytes | None


class ThreadWaiting(NamedTuple):
    """The request of this ticket, which follows, comes from a thread other than the main one."""

    ticket: int


class CallsLogged(NamedTuple):
    """Calls the rank made: new texts, and rows of int64 (see `take_notes` in csrc/nccl.h) that refer to them."""

    texts: Sequence[str]
    rows: bytes


class GroupsMade(NamedTuple):
    """Groups in the order the rank saw them made: names, and sizes and members as raw 32-bit integers."""

    names: tuple[str, ...]
    sizes: bytes
    ranks: bytes

    @classmethod
    def of(cls, groups: Iterable[tuple[str, Sequence[int]]]) -> "GroupsMade":
        """Encode groups given as (name, ranks)."""
        listed = list(groups)
        return cls(
            tuple(name for name, _ in listed),
            array("i", [len(ranks) for _, ranks in listed]).tobytes(),
            b"".join(array("i", ranks).tobytes() for _, ranks in listed),
        )


class PeerMet(NamedTuple):
    """Point-to-point traffic with global rank `peer` begins."""

    group: int
    peer: int


class StoreOperation(IntEnum):
    """What a rank does to the job's key-value store."""

    SET = 0
    GET = 1
    ADD = 2
    COMPARE_SET = 3
    DELETE = 4
    COUNT = 5


class StoreRequested(NamedTuple):
    """One operation on the job's key-value store (see `key_value_store.py`)."""

    ticket: int
    operation: int
    arguments: tuple[Any, ...]


class PortOwned(NamedTuple):
    """The rank listens at the port, or connects from it."""

    ticket: int
    port: int


class PortWanted(NamedTuple):
    """The rank asks which rank has the port."""

    ticket: int
    port: int


class ImportsLogged(NamedTuple):
    """What the script imported before it made a process group: the fields of `ImportedModule`s."""

    modules: tuple[tuple[Any, ...], ...]


class StepEnded(NamedTuple):
    """The rank has ended its `num_steps`-th step."""

    num_steps: int


RemovedFile = tuple[str, bytes | int | None]
"""The path, and what was in it: None of a directory, its size alone of a large file."""


class NodeMemoryNamed(NamedTuple):
    """The rank uses memory that others of its node find by name: they have to run, too."""


class FilesMade(NamedTuple):
    """The rank has made files and directories of these paths after its first collective, and left them."""

    paths: tuple[str, ...]


class FilesRemoved(NamedTuple):
    """The rank removes, or renames, files that other ranks may have used."""

    files: tuple[RemovedFile, ...]


class RankSaved(NamedTuple):
    """The rank has saved its records and ends.

    `stack` are the script's lines where it was stopped, `loaders` what is known of its data loaders (`loop_state.py`),
    and `made_groups` the groups it saw made by `new_group` (`group_order.py`). It may have been followed after the
    records ended, to the end of the script if it `has_ended`.
    """

    stop_reason: str
    digest: str
    num_steps: int
    private_bytes: int
    has_flat_buffers: bool = False
    chunked_dims: tuple[tuple[int, int], ...] = ()
    stack: tuple[tuple[str, int], ...] = ()
    loaders: tuple[tuple[str, int, int, bool], ...] = ()
    made_groups: tuple[tuple[tuple[int, ...], str, int], ...] = ()
    is_followed: bool = False
    has_ended: bool = False


class RankFailed(NamedTuple):
    """The script failed on the rank: `rule` of the finding, the exception's last line, the script line, the remedy.

    `moment` says when in the course of training, where that matters.
    """

    rule: str
    exit_code: int
    traceback: str
    text: str
    file: str = ""
    line: int = 0
    remedy: str = ""
    moment: str = ""
    is_data: bool = False
    """Whether the exception came out of a data loader, whose numbers are real."""
    callers: tuple[tuple[str, int], ...] = ()
    """The lines of the script from which that line was called, the nearest first."""


# ---- to a rank ----


class GatherAnswered(NamedTuple):
    """What the members put in: member k gave `table[sources[k]]`, with `sources` as raw 32-bit integers."""

    ticket: int
    table: tuple[bytes | None, ...]
    sources: bytes


class ReceiveAnswered(NamedTuple):
    """What the peer sent; None if it is unknown."""

    ticket: int
    payload: bytes | None


class StopOrdered(NamedTuple):
    """Instead of an answer: the capture of this rank stops here."""

    ticket: int
    reason: str


class StoreAnswered(NamedTuple):
    """The result of an operation on the key-value store."""

    ticket: int
    value: Any


class PortRecorded(NamedTuple):
    """The launcher knows the rank's port now."""

    ticket: int


class PortFound(NamedTuple):
    """The rank that has the port, or None."""

    ticket: int
    rank: int | None


Message = (
    GatherPosted
    | ReceivePosted
    | SendPosted
    | ThreadWaiting
    | CallsLogged
    | GroupsMade
    | PeerMet
    | StoreRequested
    | PortOwned
    | PortWanted
    | ImportsLogged
    | StepEnded
    | NodeMemoryNamed
    | FilesMade
    | FilesRemoved
    | RankSaved
    | RankFailed
)
"""What a rank sends."""

Answer = GatherAnswered | ReceiveAnswered | StopOrdered | StoreAnswered | PortRecorded | PortFound
"""What the launcher sends; the first field is the ticket of the request."""

_TYPES: tuple[Any, ...] = (*get_args(Message), *get_args(Answer))
_TAGS = {kind: tag for tag, kind in enumerate(_TYPES)}
_LENGTH = struct.Struct("<I")


def pack(message: Message | Answer) -> bytes:
    """Encode one message for the socket."""
    body = marshal.dumps((_TAGS[type(message)], *message))
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Reassembles messages from the pieces that a socket delivers."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[Any]:
        """Add received bytes; return the messages that are complete now."""
        pending = self._pending + data if self._pending else data
        messages: list[Any] = []
        start = 0
        while len(pending) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            end = start + _LENGTH.size + length
            if len(pending) < end:
                break
            tag, *values = marshal.loads(pending[start + _LENGTH.size : end])
            messages.append(_TYPES[tag](*values))
            start = end
        self._pending = pending[start:]
        return messages
