"""Mismatches: ranks whose collectives do not agree, as findings.

Every rank leaves a log of its collectives (group, sequence number, operation, type, size, script line). Members of one
group must have the same log for that group; where two first differ is where the script went wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sandtable.errors import MismatchError
from sandtable.findings import Evidence, Finding, Severity, name_ranks
from sandtable.trace import format_ranks
from sandtable.vgpu.group_registry import UNNAMED_GROUP, GroupRegistry
from sandtable.vgpu.protocol import Call

__all__ = ["CallLog", "Waiting", "agrees", "deadlock", "find_mismatch", "mismatch"]

_ORDER = "every rank of a group must make the same calls in the same order"
_REMEDY = "make all ranks of the group reach the same call, with equal type and size"

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class CallLog:
    """The collectives of one rank, in order, as rows of integers; texts are kept once."""

    texts: list[str] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)

    def add(self, texts: Iterable[str], rows: bytes) -> None:
        self.texts.extend(texts)
        self.pieces.append(rows)

    def rows(self) -> Ints:
        """Return the columns group, seq, op, dtype, num_bytes, file, line."""
        return np.frombuffer(b"".join(self.pieces), dtype=np.int64).reshape(-1, 7)

    def call(self, row: Sequence[int]) -> Call:
        group, seq, op, dtype, num_bytes, file, line = (int(value) for value in row)
        texts = self.texts
        return Call(
            group=group,
            seq=seq,
            op=texts[op],
            dtype=texts[dtype],
            num_bytes=num_bytes,
            file=texts[file],
            line=line,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A rank that cannot continue: the call it is in, its group, and the ranks it waits for."""

    rank: int
    call: Call
    group: str
    missing: tuple[int, ...]
    ended: tuple[int, ...] = ()


def agrees(one: Call, other: Call) -> bool:
    """Return whether two members' calls can be one collective."""
    sizes = {one.num_bytes, other.num_bytes} - {-1}
    return one.op == other.op and one.dtype == other.dtype and len(sizes) <= 1


def mismatch(group: str, first: tuple[int, Call], second: tuple[int, Call]) -> MismatchError:
    """Return the error for two members of one group that make different calls at the same place."""
    calls = (first, second)
    return MismatchError(
        Finding(
            rule="collective-mismatch",
            severity=Severity.ERROR,
            message=f"{_ORDER}, but call {first[1].seq} of {group} differs",
            ranks=tuple(rank for rank, _ in calls),
            evidence=tuple(
                Evidence(ranks=(rank,), text=f"calls {_describe(call)}", file=call.file, line=call.line)
                for rank, call in calls
            ),
            remedy=_REMEDY,
        )
    )


def deadlock(waits: Sequence[Waiting]) -> MismatchError:
    """Return the error for ranks that wait forever for each other, or for ranks that have ended."""
    ranks_of: dict[tuple[str, str, int], list[int]] = {}
    for wait in waits:
        call = wait.call
        text = f"for {name_ranks(wait.missing)}{_ended(wait)} in {_describe(call)}, call {call.seq} of {wait.group}"
        ranks_of.setdefault((text, call.file, call.line), []).append(wait.rank)
    evidence = tuple(
        Evidence(ranks=tuple(ranks), text=f"{'wait' if len(ranks) > 1 else 'waits'} {text}", file=file, line=line)
        for (text, file, line), ranks in ranks_of.items()
    )
    return MismatchError(
        Finding(
            rule="deadlock",
            severity=Severity.ERROR,
            message=f"{_ORDER}, but no rank can go on",
            ranks=tuple(wait.rank for wait in waits),
            evidence=evidence,
            remedy=_REMEDY,
        )
    )


def find_mismatch(registry: GroupRegistry, logs: Mapping[int, CallLog]) -> MismatchError | None:
    """Return the first place, in the order of a rank's own calls, where two captured members of a group disagree."""
    texts: dict[str, int] = {}
    tables = [_rows_of(rank, log, registry, texts) for rank, log in sorted(logs.items()) if log.pieces]
    if len(tables) < 2:
        return None
    rows = np.concatenate(tables)
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    same = (rows[1:, :2] == rows[:-1, :2]).all(axis=1)
    sized = (rows[1:, 5] >= 0) & (rows[:-1, 5] >= 0)
    differs = (rows[1:, 3:5] != rows[:-1, 3:5]).any(axis=1) | (sized & (rows[1:, 5] != rows[:-1, 5]))
    differing = np.flatnonzero(same & differs)
    if not len(differing):
        return None
    at = int(differing[np.argmin(rows[differing, 6])])
    pair = [(int(row[2]), logs[int(row[2])].call(logs[int(row[2])].rows()[int(row[6])])) for row in rows[at : at + 2]]
    return mismatch(group_name(registry, int(rows[at, 0])), pair[0], pair[1])


def group_name(registry: GroupRegistry, entry: int) -> str:
    """Name a group in words: by the script's own name for it, else by its ranks."""
    members, name = registry.members[entry], registry.names[entry]
    if entry == 0:
        return f"the world group ({len(members)} ranks)"
    if name == UNNAMED_GROUP:
        return f"the group of ranks {format_ranks(tuple(members.tolist()))}"
    return f"group '{name}' ({len(members)} ranks)"


def _rows_of(rank: int, log: CallLog, registry: GroupRegistry, texts: dict[str, int]) -> Ints:
    """Return the columns entry, seq, rank, op, dtype, num_bytes, row, with texts numbered alike for all ranks."""
    rows = log.rows()
    numbers = np.array([texts.setdefault(text, len(texts)) for text in log.texts], dtype=np.int64)
    entries = np.array(registry.own(rank), dtype=np.int64)
    columns = [
        entries[rows[:, 0]],
        rows[:, 1],
        np.full(len(rows), rank, dtype=np.int64),
        numbers[rows[:, 2]],
        numbers[rows[:, 3]],
        rows[:, 4],
        np.arange(len(rows), dtype=np.int64),
    ]
    return np.stack(columns, axis=1)


def _describe(call: Call) -> str:
    size = f" of {call.num_bytes:,} byte{'s' * (call.num_bytes > 1)}" if call.num_bytes > 0 else ""
    dtype = f" {call.dtype}" if size and call.dtype else ""
    peer = f" with rank {call.peer}" if call.peer >= 0 else ""
    return f"{call.op}{size}{dtype}{peer}"


def _ended(wait: Waiting) -> str:
    if not wait.ended:
        return ""
    return ", which has ended," if wait.ended == wait.missing else f" ({name_ranks(wait.ended)} ended)"
