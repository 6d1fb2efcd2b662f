"""Call logs: what each captured rank called, in order, so that ranks can be held against each other.

Every rank logs its collectives and its messages to single ranks, also those too large to be exchanged here. Members of
a group must have the same collectives in the log of that group, and every message one sender and one receiver.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sandtable.errors import MismatchError
from sandtable.findings import Finding, name_ranks
from sandtable.vgpu.group_registry import UNNAMED_GROUP, GroupRegistry
from sandtable.vgpu.protocol import Call

__all__ = ["P2P_MISMATCH", "CallLog", "CallTable", "MeetingError", "Party", "Waiting", "describe_call", "group_name"]

Ints = npt.NDArray[np.int64]

_COLUMNS = 12
"""Numbers per row: see `take_notes` in csrc/nccl.h."""


P2P_MISMATCH = "p2p-mismatch"

Party = tuple[int, Call | None]
"""A rank, and the call it is in; None if its script has ended."""


class MeetingError(MismatchError):
    """Ranks that do not meet: the members of a group, and the call that each of them is in."""

    def __init__(self, finding: Finding, entry: int = 0, parties: Sequence[Party] = ()) -> None:
        super().__init__(finding)
        self.args = (finding, entry, tuple(parties))
        self.entry = entry
        self.parties = tuple(parties)


@dataclass(slots=True, eq=False)
class CallLog:
    """The calls of one rank, in order, as rows of integers; texts are kept once."""

    texts: list[str] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)

    def add(self, texts: Iterable[str], rows: bytes) -> None:
        """Add what a rank reports: new texts, and rows that refer to texts by number."""
        self.texts.extend(texts)
        self.pieces.append(rows)

    def rows(self) -> Ints:
        """Return the columns of `take_notes`."""
        if len(self.pieces) > 1:
            self.pieces = [b"".join(self.pieces)]
        return np.frombuffer(b"".join(self.pieces), dtype=np.int64).reshape(-1, _COLUMNS)

    def call(self, row: Sequence[int]) -> Call:
        """Return one row as a call."""
        group, seq, op, dtype, num_bytes, file, line, peer, tag, root, reduce, splits = (int(value) for value in row)
        texts = self.texts
        return Call(
            group=group,
            seq=seq,
            op=texts[op],
            dtype=texts[dtype],
            num_bytes=num_bytes,
            file=texts[file],
            line=line,
            peer=peer,
            tag=tag,
            root=root,
            reduce=texts[reduce],
            splits=texts[splits],
        )


@dataclass(frozen=True, slots=True, eq=False)
class CallTable:
    """The calls of all captured ranks in one table, with groups and texts numbered alike for all of them.

    `rows` are those of `take_notes`, sorted by group, sequence number and rank; `entry` is the group's number in the
    registry, `row` the place in the rank's own log.
    """

    rows: Ints
    entry: Ints
    rank: Ints
    row: Ints
    texts: tuple[str, ...]

    @classmethod
    def of(cls, registry: GroupRegistry, logs: Mapping[int, CallLog]) -> "CallTable":
        """Put the logs of several ranks together."""
        texts: dict[str, int] = {}
        tables: list[Ints] = []
        for rank, log in sorted(logs.items()):
            if log.pieces and len(rows := log.rows()):
                tables.append(_numbered(rank, rows, log, registry, texts))
        table = np.concatenate(tables) if tables else np.empty((0, _COLUMNS + 3), dtype=np.int64)
        entry, rank_column, row = table[:, _COLUMNS], table[:, _COLUMNS + 1], table[:, _COLUMNS + 2]
        order = np.lexsort((rank_column, table[:, 1], entry))
        return cls(table[order, :_COLUMNS], entry[order], rank_column[order], row[order], tuple(texts))

    def collectives(self) -> "CallTable":
        """Return the calls that all members of a group make."""
        return self._only(self.rows[:, 7] < 0)

    def messages(self) -> "CallTable":
        """Return the calls between two ranks."""
        return self._only(self.rows[:, 7] >= 0)

    def call(self, index: int) -> Call:
        """Return one row as a call; its group is the place in the rank's own list."""
        values = self.rows[index].tolist()
        for column in (2, 3, 5, 10, 11):
            values[column] = self.texts[values[column]]
        group, seq, op, dtype, num_bytes, file, line, *rest = values
        return Call(group, seq, op, dtype, num_bytes, file, line, *rest)

    def meeting(self, entry: int, seq: int) -> Iterator[tuple[int, Call]]:
        """Yield each rank that made this collective, with its call."""
        for index in np.flatnonzero((self.entry == entry) & (self.rows[:, 1] == seq)).tolist():
            yield int(self.rank[index]), self.call(index)

    def of_rank(self, rank: int, entry: int) -> list[Call]:
        """Return the collectives that one rank made in a group, in order."""
        return [self.call(index) for index in np.flatnonzero((self.rank == rank) & (self.entry == entry)).tolist()]

    def _only(self, chosen: npt.NDArray[np.bool_]) -> "CallTable":
        return CallTable(self.rows[chosen], self.entry[chosen], self.rank[chosen], self.row[chosen], self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A rank that cannot continue: the call it is in, its group, and the ranks it waits for."""

    rank: int
    call: Call
    group: str
    missing: tuple[int, ...]
    ended: tuple[int, ...] = ()
    entry: int = -1

    @property
    def text(self) -> str:
        """Say in words what it waits for."""
        place = "" if self.call.peer >= 0 else f", call {self.call.seq} of {self.group}"
        return f"for {name_ranks(self.missing)}{self._ended()} in {describe_call(self.call)}{place}"

    def _ended(self) -> str:
        if not self.ended:
            return ""
        return ", which has ended," if self.ended == self.missing else f" ({name_ranks(self.ended)} ended)"


def group_name(registry: GroupRegistry, entry: int) -> str:
    """Name a group in words: by the script's own name for it, else by its ranks."""
    members, name = registry.members[entry], registry.names[entry]
    if entry == 0:
        return f"the world group ({len(members)} ranks)"
    if name == UNNAMED_GROUP:
        return f"the group of {name_ranks(members.tolist())}"
    return f"group '{name}' ({len(members)} ranks)"


def describe_call(call: Call) -> str:
    """Describe a call in words: `all_reduce of 4,096 bytes float32`."""
    size = f" of {call.num_bytes:,} byte{'s' * (call.num_bytes > 1)}" if call.num_bytes > 0 else ""
    dtype = f" {call.dtype}" if size and call.dtype else ""
    way = {"send": "to", "recv": "from"}.get(call.op, "with")
    peer = f" {way} rank {call.peer}" if call.peer >= 0 else ""
    return f"{call.op}{size}{dtype}{peer}"


def _numbered(rank: int, rows: Ints, log: CallLog, registry: GroupRegistry, texts: dict[str, int]) -> Ints:
    numbers = np.array([texts.setdefault(text, len(texts)) for text in log.texts], dtype=np.int64)
    entries = np.array(registry.own(rank), dtype=np.int64)
    table = np.empty((len(rows), _COLUMNS + 3), dtype=np.int64)
    table[:, :_COLUMNS] = rows
    for column in (2, 3, 5, 10, 11):
        table[:, column] = numbers[rows[:, column]]
    table[:, _COLUMNS] = entries[rows[:, 0]]
    table[:, _COLUMNS + 1] = rank
    table[:, _COLUMNS + 2] = np.arange(len(rows))
    return table
