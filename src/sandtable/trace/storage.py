"""Storage: the file of a trace.

One zip (see `archive.py`), suffix `.sandtable`, compressed:

    header.json               format, version, facts of the run, facts of each class
    class_of_rank.npy         the class of each rank of the world, -1 where none was captured (differences)
    groups.json               names of all groups
    groups.npy                members of all groups, one after the other (differences)
    groups_offsets.npy        where each group begins
    signatures.json           every signature of the run, once
    tables.json               script lines, collective operators, dtypes, reductions, splits, once
    observations.json       what was observed on each captured rank
    own_groups.json           groups of each representative, where they are not simply those of the run that hold it
    classes/<k>/records/<column>.npy, classes/<k>/calls/<column>.npy

Differences of neighbours turn the regular patterns of ranks into runs of equal numbers, which compress to nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sandtable.trace import archive
from sandtable.trace.columns import Calls, Records
from sandtable.trace.groups import Group, GroupTable
from sandtable.trace.lines import Line
from sandtable.trace.observations import Observations
from sandtable.trace.records import MemoryPeaks, Note, RankRecords, SharedTables
from sandtable.trace.signature import SignatureTable

__all__ = ["FILE_NAME", "VERSION", "Content", "RunFacts", "StoredContent", "write_trace"]

FILE_NAME = "trace.sandtable"
FORMAT = "sandtable-trace"
VERSION = 2

_FACTS = ("num_steps", "finished", "stop_reason", "core_seconds", "peak_rss_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about the run as a whole. `captured_ranks` are all ranks that ran, even if only to verify a class.

    `ranks_per_node` is how many ranks started on each node; 0: one per GPU. The first `num_skipped_steps` steps, of a
    warm-up for example, are not timed if others follow.
    """

    world_size: int
    cluster: str = ""
    gpus_per_node: int = 1
    ranks_per_node: int = 0
    command: tuple[str, ...] = ()
    num_steps: int = 0
    num_skipped_steps: int = 1
    captured_ranks: tuple[int, ...] = ()
    wall_seconds: float = 0.0
    core_seconds: float = 0.0
    peak_rss_bytes: int = 0
    notes: tuple[Note, ...] = ()


class Content(Protocol):
    """The parts of a trace, in memory or in a file that is read piece by piece."""

    @property
    def run(self) -> RunFacts: ...
    @property
    def representatives(self) -> tuple[int, ...]: ...
    @property
    def class_of_rank(self) -> npt.NDArray[np.int32]: ...
    @property
    def groups(self) -> GroupTable: ...
    @property
    def tables(self) -> SharedTables: ...
    @property
    def observations(self) -> Mapping[int, Observations]: ...
    def records(self, index: int) -> RankRecords:
        """Return the records of class number `index`."""
        ...


def write_trace(path: str | PathLike[str], content: Content) -> None:
    """Write a trace in one move: the whole file or nothing."""
    groups, tables = content.groups, content.tables
    classes = [content.records(index) for index in range(len(content.representatives))]
    arrays: dict[str, npt.NDArray[Any]] = {
        "class_of_rank": _differences(content.class_of_rank),
        "groups": _differences(groups.members),
        "groups_offsets": groups.offsets,
    }
    for index, records in enumerate(classes):
        arrays |= {f"classes/{index}/records/{name}": column for name, column in records.records.columns.items()}
        arrays |= {f"classes/{index}/calls/{name}": column for name, column in records.calls.columns.items()}
    documents = {
        "header": {
            "format": FORMAT,
            "version": VERSION,
            "run": asdict(content.run) | {"notes": _note_rows(content.run.notes)},
            "classes": [_class_to_json(records) for records in classes],
        },
        "groups": groups.names,
        "signatures": tables.signatures.texts,
        "tables": _tables_to_json(tables),
        "observations": [observed.to_json() for observed in content.observations.values()],
        "own_groups": [_own_groups_to_json(records, groups) for records in classes],
    }
    archive.write(path, arrays, documents, compress=True)


class StoredContent:
    """The content of a trace file, each part read on demand."""

    def __init__(self, path: str | PathLike[str]) -> None:
        path = Path(path)
        self._file = archive.Reader(path / FILE_NAME if path.is_dir() else path, family=FORMAT, version=VERSION)

    @cached_property
    def run(self) -> RunFacts:
        facts = dict(self._file.header["run"])
        for name in ("command", "captured_ranks"):
            facts[name] = tuple(facts[name])
        return RunFacts(**facts | {"notes": _notes(facts["notes"])})

    @cached_property
    def representatives(self) -> tuple[int, ...]:
        return tuple(facts["rank"] for facts in self._file.header["classes"])

    @cached_property
    def class_of_rank(self) -> npt.NDArray[np.int32]:
        return np.cumsum(self._file.array("class_of_rank"), dtype=np.int32)

    @cached_property
    def groups(self) -> GroupTable:
        members = np.cumsum(self._file.array("groups"), dtype=np.int64)
        return GroupTable.of_columns(self._file.document("groups"), members, self._file.array("groups_offsets"))

    @cached_property
    def tables(self) -> SharedTables:
        data = self._file.document("tables")
        return SharedTables(
            signatures=SignatureTable(self._file.document("signatures")),
            lines=tuple(Line(*row) for row in data["lines"]),
            splits=tuple((tuple(inputs), tuple(outputs)) for inputs, outputs in data["splits"]),
            **{name: tuple(data[name]) for name in ("call_ops", "dtypes", "reduces")},
        )

    @cached_property
    def observations(self) -> Mapping[int, Observations]:
        observed = map(Observations.from_json, self._file.document("observations"))
        return {rank.rank: rank for rank in observed}

    def records(self, index: int) -> RankRecords:
        facts, tables, array = self._file.header["classes"][index], self.tables, self._file.array
        return RankRecords(
            rank=facts["rank"],
            records=Records.of({name: array(f"classes/{index}/records/{name}") for name in Records.dtypes()}),
            calls=Calls.of({name: array(f"classes/{index}/calls/{name}") for name in Calls.dtypes()}),
            signatures=tables.signatures,
            call_ops=tables.call_ops,
            dtypes=tables.dtypes,
            reduces=tables.reduces,
            splits=tables.splits,
            lines=tables.lines,
            groups=self._own_groups(index, facts["rank"]),
            notes=_notes(facts["notes"]),
            memory=MemoryPeaks(**facts["memory"]),
            **{name: facts[name] for name in _FACTS},
        )

    def _own_groups(self, index: int, rank: int) -> tuple[Group, ...]:
        written = self._written_groups[index]
        if written is None:
            return _member_groups(self.groups, rank)
        return tuple(Group(name, tuple(ranks)) for name, ranks in written)

    @cached_property
    def _written_groups(self) -> list[list[tuple[str, list[int]]] | None]:
        written: list[list[tuple[str, list[int]]] | None] = self._file.document("own_groups")
        return written


def _own_groups_to_json(records: RankRecords, groups: GroupTable) -> list[tuple[str, tuple[int, ...]]] | None:
    """Return the representative's groups, unless they are simply the run's groups that hold it."""
    if records.groups == _member_groups(groups, records.rank):
        return None
    return [(group.name, group.ranks) for group in records.groups]


def _class_to_json(records: RankRecords) -> dict[str, Any]:
    return {name: getattr(records, name) for name in ("rank", *_FACTS)} | {
        "notes": _note_rows(records.notes),
        "memory": asdict(records.memory),
    }


def _tables_to_json(tables: SharedTables) -> dict[str, Any]:
    return {
        "lines": [(line.file, line.line, line.function) for line in tables.lines],
        "splits": tables.splits,
        "call_ops": tables.call_ops,
        "dtypes": tables.dtypes,
        "reduces": tables.reduces,
    }


def _member_groups(groups: GroupTable, rank: int) -> tuple[Group, ...]:
    return tuple(groups[int(index)] for index in groups.containing(rank))


def _note_rows(notes: tuple[Note, ...]) -> list[tuple[str, str, int]]:
    return [(note.kind, note.text, note.line) for note in notes]


def _notes(rows: list[list[Any]]) -> tuple[Note, ...]:
    return tuple(Note(*row) for row in rows)


def _differences(column: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    return np.diff(column, prepend=0).astype(np.int32)
