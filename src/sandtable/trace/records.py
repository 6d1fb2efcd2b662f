"""Records: what one rank did, as the capture returns it.

Think of a flight recorder: every operator, collective, wait, allocation and step boundary is one row, in the order the
rank's host issued it. Rows hold indices into tables beside them (signatures, script lines, groups, ...), which hold
everything once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.trace import archive
from sandtable.trace.columns import Calls, Records
from sandtable.trace.digest import digest_work
from sandtable.trace.groups import Group, GroupTable
from sandtable.trace.kinds import Kind, Phase, SyncKind
from sandtable.trace.signature import Signature, SignatureTable, TensorSpec, hash_texts

__all__ = [
    "Calls",
    "Group",
    "Kind",
    "Line",
    "MemoryPeaks",
    "Note",
    "Phase",
    "RankRecords",
    "Records",
    "SharedTables",
    "Signature",
    "SignatureTable",
    "Splits",
    "SyncKind",
    "TensorSpec",
]

FORMAT = "sandtable-rank"
VERSION = 1

Splits = tuple[tuple[int, ...], tuple[int, ...]]
"""Input and output splits of an uneven all-to-all; ((), ()) for every other call."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's script; index 0 of every table of lines is the unknown line."""

    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "(unknown line)"


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know about the capture; `line` is an index into the lines."""

    kind: str
    text: str
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeaks:
    """The caching allocator's peaks on one rank."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    capacity_bytes: int = 0
    num_ooms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecords:
    """One captured rank. `RankRecords.build` makes it from plain lists and arrays."""

    rank: int
    records: Records
    calls: Calls
    signatures: SignatureTable = field(default_factory=SignatureTable)
    call_ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    reduces: tuple[str, ...] = ("",)
    splits: tuple[Splits, ...] = (((), ()),)
    lines: tuple[Line, ...] = (Line(),)
    groups: tuple[Group, ...] = ()
    """The groups that this rank is a member of, in creation order; 0 is the world."""
    seen_groups: tuple[Group, ...] = ()
    """Every group whose creation this rank saw, member or not, in order."""
    notes: tuple[Note, ...] = ()
    memory: MemoryPeaks = MemoryPeaks()
    num_steps: int = 0
    finished: bool = True
    stop_reason: str = ""
    core_seconds: float = 0.0
    peak_rss_bytes: int = 0

    @classmethod
    def build(
        cls,
        *,
        rank: int,
        records: Records | Mapping[str, npt.ArrayLike],
        calls: Calls | Mapping[str, npt.ArrayLike] | None = None,
        signatures: Iterable[str | Signature] = (),
        **tables: Any,
    ) -> "RankRecords":
        """Make the records of a rank from columns and lists; the other fields are keyword arguments."""
        frozen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in tables.items()
        }
        return cls(
            rank=rank,
            records=records if isinstance(records, Records) else Records.of(records),
            calls=calls if isinstance(calls, Calls) else Calls.of(calls),
            signatures=signatures if isinstance(signatures, SignatureTable) else SignatureTable(signatures),
            **frozen,
        )

    def digest(self) -> str:
        """Return a hash of the work: equal for ranks that do the same, whichever they are. See `digest.py`."""
        return digest_work(
            self.records,
            self.calls,
            signatures=self.signatures.hashes,
            lines=hash_texts(f"{line.file}\0{line.line}\0{line.function}" for line in self.lines),
            tables={
                "op": hash_texts(self.call_ops),
                "dtype": hash_texts(self.dtypes),
                "reduce": hash_texts(self.reduces),
                "splits": hash_texts(map(repr, self.splits)),
                "group_size": np.array([len(group.ranks) for group in self.groups], dtype=np.uint64),
            },
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the intermediate file that a captured rank leaves for the launcher: quick to write, not compressed."""
        seen, own = GroupTable(self.seen_groups), GroupTable(self.groups)
        arrays = {f"records/{name}": column for name, column in self.records.columns.items()}
        arrays |= {f"calls/{name}": column for name, column in self.calls.columns.items()}
        arrays |= {"seen_groups": seen.members, "seen_groups_offsets": seen.offsets}
        arrays |= {"groups": own.members, "groups_offsets": own.offsets}
        facts = {name: getattr(self, name) for name in _FACTS}
        document = facts | tables_to_json(self) | {"group_names": own.names, "seen_group_names": seen.names}
        document["signatures"] = self.signatures.texts
        archive.write(path, arrays, {"header": {"format": FORMAT, "version": VERSION}, "rank": document})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "RankRecords":
        """Read what `save` wrote."""
        reader = archive.Reader(path, family=FORMAT, version=VERSION)
        data = reader.document("rank")
        own = GroupTable.of_columns(data["group_names"], reader.array("groups"), reader.array("groups_offsets"))
        seen = GroupTable.of_columns(
            data["seen_group_names"], reader.array("seen_groups"), reader.array("seen_groups_offsets")
        )
        return cls(
            records=Records(**{name: reader.array(f"records/{name}") for name in Records.dtypes()}),
            calls=Calls(**{name: reader.array(f"calls/{name}") for name in Calls.dtypes()}),
            signatures=SignatureTable(data["signatures"]),
            groups=tuple(own),
            seen_groups=tuple(seen),
            **tables_from_json(data),
            **{name: data[name] for name in _FACTS},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTables:
    """What the columns of every class of a trace point at."""

    signatures: SignatureTable = field(default_factory=SignatureTable)
    lines: tuple[Line, ...] = (Line(),)
    call_ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    reduces: tuple[str, ...] = ("",)
    splits: tuple[Splits, ...] = (((), ()),)


_FACTS = ("rank", "num_steps", "finished", "stop_reason", "core_seconds", "peak_rss_bytes")


def tables_to_json(records: RankRecords) -> dict[str, Any]:
    """Return the small tables and the memory peaks as lists for JSON."""
    return {
        "call_ops": records.call_ops,
        "dtypes": records.dtypes,
        "reduces": records.reduces,
        "splits": records.splits,
        "lines": [(line.file, line.line, line.function) for line in records.lines],
        "notes": [(note.kind, note.text, note.line) for note in records.notes],
        "memory": [getattr(records.memory, item.name) for item in fields(MemoryPeaks)],
    }


def tables_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `tables_to_json`: return keyword arguments of `RankRecords`."""
    names = [item.name for item in fields(MemoryPeaks)]
    return {
        "call_ops": tuple(data["call_ops"]),
        "dtypes": tuple(data["dtypes"]),
        "reduces": tuple(data["reduces"]),
        "splits": tuple((tuple(inputs), tuple(outputs)) for inputs, outputs in data["splits"]),
        "lines": tuple(Line(*row) for row in data["lines"]),
        "notes": tuple(Note(*row) for row in data["notes"]),
        "memory": MemoryPeaks(**dict(zip(names, data["memory"], strict=True))),
    }
