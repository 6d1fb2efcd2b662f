"""Interning: one set of tables for all ranks of a trace.

Ranks number their signatures and lines as they meet them. Before they share a file, their tables are merged and the
columns renumbered, so that a signature used by sixteen classes is stored once.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sandtable.trace.columns import Calls, Records
from sandtable.trace.kinds import Kind
from sandtable.trace.lines import Line
from sandtable.trace.records import Note, RankRecords, SharedTables, Splits
from sandtable.trace.signature import SignatureTable

__all__ = ["intern_records"]

T = TypeVar("T", bound=Hashable)


def intern_records(ranks: Sequence[RankRecords]) -> tuple[list[RankRecords], SharedTables]:
    """Renumber the ranks to share one set of tables; flat buffers are dropped."""
    texts = _Numbering[str]()
    lines = _Numbering[Line]([Line()])
    call_ops, dtypes, reduces = _Numbering[str](), _Numbering[str](), _Numbering[str]([""])
    splits = _Numbering[Splits]([((), ())])
    renumbered = []
    for rank in ranks:
        line_map = lines.map(rank.lines)
        columns = {
            "op": call_ops.map(rank.call_ops)[rank.calls.op],
            "dtype": dtypes.map(rank.dtypes)[rank.calls.dtype],
            "reduce": reduces.map(rank.reduces)[rank.calls.reduce],
            "splits": splits.map(rank.splits)[rank.calls.splits],
            "line": line_map[rank.calls.line],
        }
        records = _renumber(rank.records, texts.map(rank.signatures.texts), line_map)
        calls = Calls.of({**rank.calls.columns, **columns})
        notes = tuple(Note(note.kind, note.text, int(line_map[note.line])) for note in rank.notes)
        renumbered.append((rank, records, calls, notes))
    tables = SharedTables(
        signatures=SignatureTable(texts.items),
        lines=lines.items,
        call_ops=call_ops.items,
        dtypes=dtypes.items,
        reduces=reduces.items,
        splits=splits.items,
    )
    return [_share(rank, tables, records, calls, notes) for rank, records, calls, notes in renumbered], tables


class _Numbering(Generic[T]):
    """Numbers things from 0 in the order of first appearance."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._numbers: dict[T, int] = {}
        self.map(items)

    def map(self, items: Iterable[T]) -> npt.NDArray[np.int64]:
        numbers = self._numbers
        return np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64)

    @property
    def items(self) -> tuple[T, ...]:
        return tuple(self._numbers)


def _renumber(records: Records, signatures: npt.NDArray[Any], lines: npt.NDArray[Any]) -> Records:
    ref = records.ref.astype(np.int64)
    operators = records.kind == Kind.OPERATOR
    ref[operators] = signatures[ref[operators]]
    return Records.of({**records.columns, "ref": ref, "line": lines[records.line]})


def _share(
    rank: RankRecords, tables: SharedTables, records: Records, calls: Calls, notes: tuple[Note, ...]
) -> RankRecords:
    return replace(
        rank,
        records=records,
        calls=calls,
        notes=notes,
        signatures=tables.signatures,
        lines=tables.lines,
        call_ops=tables.call_ops,
        dtypes=tables.dtypes,
        reduces=tables.reduces,
        splits=tables.splits,
        flat_buffers=(),
        reduced_buckets=(),
        chunked_dims=(),
    )
