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
from sandtable.trace.lines import Line
from sandtable.trace.signature import Signature, SignatureTable, TensorSpec, hash_texts

__all__ = [
    "Calls",
    "FlatBuffer",
    "Group",
    "Kind",
    "MemoryPeaks",
    "Note",
    "Phase",
    "RankRecords",
    "Records",
    "ReducedBucket",
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
class Note:
    """Something the user should know about the capture; `line` is an index into the lines."""

    kind: str
    text: str
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeaks:
    """The caching allocator's peaks on one rank, and the memory of its host that it uses."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    capacity_bytes: int = 0
    num_ooms: int = 0
    host_bytes: int = 0
    """What tensors in host memory hold after the first step: offloaded states, pinned buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatBuffer:
    """Parameters laid end to end in one buffer, which the ranks of a group hold equal shards of.

    `parts` are (start, number of elements, flags) of each parameter, in the order of the buffer. Flags are what
    optimizers may distinguish parameters by, such as "vector".
    """

    num_elements: int
    parts: tuple[tuple[int, int, tuple[str, ...]], ...]
    num_shards: int = 0
    """How many, where the framework says; else calls show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedBucket:
    """Parameters whose gradients were reduced together: (flat buffer, part of it) of each, in their order there."""

    is_in_backward: bool
    """Whether the backward pass was under way; else it had ended."""
    parameters: tuple[tuple[int, int], ...]


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
    flat_buffers: tuple[FlatBuffer, ...] = ()
    reduced_buckets: tuple[ReducedBucket, ...] = ()
    """The buffers that this rank holds shards of; kept only until the classes are known."""
    chunked_dims: tuple[tuple[int, int], ...] = ()
    """Length and group of the dims of distributed tensors that a group does not divide; kept no longer."""
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
            lines=self.line_hashes(),
            tables={
                "op": hash_texts(self.call_ops),
                "dtype": hash_texts(self.dtypes),
                "reduce": hash_texts(self.reduces),
                "splits": hash_texts(map(repr, self.splits)),
                "group_size": np.array([len(group.ranks) for group in self.groups], dtype=np.uint64),
            },
        )

    def line_hashes(self) -> npt.NDArray[np.uint64]:
        """Return one hash per script line: equal in two tables where the lines are equal."""
        return hash_texts(f"{line.file}\0{line.line}\0{line.function}" for line in self.lines)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the intermediate file that a captured rank leaves for the launcher: quick to write, not compressed."""
        own = GroupTable(self.groups)
        arrays = {f"records/{name}": column for name, column in self.records.columns.items()}
        arrays |= {f"calls/{name}": column for name, column in self.calls.columns.items()}
        arrays |= {"groups": own.members, "groups_offsets": own.offsets}
        facts = {name: getattr(self, name) for name in _FACTS}
        document = facts | tables_to_json(self) | {"group_names": own.names}
        document["signatures"] = self.signatures.texts
        document["flat_buffers"] = [
            (buffer.num_elements, buffer.parts, buffer.num_shards) for buffer in self.flat_buffers
        ]
        document["reduced_buckets"] = [(bucket.is_in_backward, bucket.parameters) for bucket in self.reduced_buckets]
        document["chunked_dims"] = self.chunked_dims
        archive.write(path, arrays, {"header": {"format": FORMAT, "version": VERSION}, "rank": document})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "RankRecords":
        """Read what `save` wrote."""
        reader = archive.Reader(path, family=FORMAT, version=VERSION)
        data = reader.document("rank")
        own = GroupTable.of_columns(data["group_names"], reader.array("groups"), reader.array("groups_offsets"))
        return cls(
            records=Records(**{name: reader.array(f"records/{name}") for name in Records.dtypes()}),
            calls=Calls(**{name: reader.array(f"calls/{name}") for name in Calls.dtypes()}),
            signatures=SignatureTable(data["signatures"]),
            groups=tuple(own),
            flat_buffers=tuple(
                FlatBuffer(
                    num_elements=size,
                    parts=tuple((start, count, tuple(flags)) for start, count, flags in parts),
                    num_shards=num_shards,
                )
                for size, parts, num_shards in data["flat_buffers"]
            ),
            reduced_buckets=tuple(
                ReducedBucket(is_in_backward=is_in_backward, parameters=tuple(map(tuple, parameters)))
                for is_in_backward, parameters in data["reduced_buckets"]
            ),
            chunked_dims=tuple((length, group) for length, group in data["chunked_dims"]),
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
