"""The collectives of one rank with the identities of what went in: thousands, so they are kept as columns.

A rule sees a sequence of `CallIdentity`; they are made when the first of them is looked at.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from sandtable.trace.lines import Line

__all__ = ["CallIdentity", "ObservedCalls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallIdentity:
    """A collective on the card and the identity of what the rank put in."""

    op: str
    reduce: str
    group: tuple[int, ...]
    """The ranks of the group; empty for the world."""
    number: int
    """How many collectives of that group came before it."""
    identity: int
    num_bytes: int
    phase: str
    place: Line
    row: int


_TABLES = ("op", "reduce", "group", "phase", "place")
"""Columns that hold places in a table of what occurs."""

_TYPES = {
    **dict.fromkeys(_TABLES, "<u4"),
    "number": "<u4",
    "identity": "<u8",
    "num_bytes": "<i8",
    "row": "<i8",
}


class ObservedCalls(Sequence[CallIdentity]):
    """Calls as columns; a column named in `tables` holds places in that table."""

    __slots__ = ("_calls", "_columns", "_tables")

    def __init__(self, columns: Mapping[str, npt.NDArray[Any]], tables: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: np.asarray(columns[name], dtype=kind) for name, kind in _TYPES.items()}
        self._tables = {name: _used(self._columns, name, tables[name]) for name in _TABLES}
        self._calls: tuple[CallIdentity, ...] | None = None

    @classmethod
    def of(cls, calls: Iterable[CallIdentity]) -> ObservedCalls:
        """Return these calls as columns."""
        if isinstance(calls, ObservedCalls):
            return calls
        rows = tuple(calls)
        columns = {name: [getattr(row, name) for row in rows] for name in _TYPES}
        tables = {name: list(dict.fromkeys(columns[name])) for name in _TABLES}
        for name, table in tables.items():
            places = {value: place for place, value in enumerate(table)}
            columns[name] = [places[value] for value in columns[name]]
        return cls({name: np.array(values, dtype=_TYPES[name]) for name, values in columns.items()}, tables)

    def __len__(self) -> int:
        return len(self._columns["row"])

    def __iter__(self) -> Iterator[CallIdentity]:
        return iter(self._all)

    @overload
    def __getitem__(self, place: int) -> CallIdentity: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[CallIdentity, ...]: ...
    def __getitem__(self, place: int | slice) -> CallIdentity | tuple[CallIdentity, ...]:
        return self._all[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return f"ObservedCalls({len(self)} calls)"

    def to_json(self) -> dict[str, object]:
        """Return tables and columns, the latter as text."""
        columns = {name: base64.b64encode(values.tobytes()).decode() for name, values in self._columns.items()}
        lines = [(line.file, line.line, line.function) for line in self._tables["place"]]
        return {"columns": columns, "tables": self._tables | {"place": lines}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ObservedCalls:
        """Invert `to_json`."""
        tables = document["tables"]
        columns = {
            name: np.frombuffer(base64.b64decode(document["columns"][name]), dtype=kind)
            for name, kind in _TYPES.items()
        }
        rich = {"place": [Line(*row) for row in tables["place"]], "group": [tuple(ranks) for ranks in tables["group"]]}
        return cls(columns, tables | rich)

    @property
    def _all(self) -> tuple[CallIdentity, ...]:
        if self._calls is None:
            values = {name: column.tolist() for name, column in self._columns.items()}
            for name, table in self._tables.items():
                values[name] = [table[place] for place in values[name]]
            rows = zip(*values.values(), strict=True)
            self._calls = tuple(CallIdentity(**dict(zip(values, row, strict=True))) for row in rows)
        return self._calls


def _used(columns: dict[str, npt.NDArray[Any]], name: str, table: Sequence[Any]) -> list[Any]:
    """Return what of the table occurs in the column, which then holds places in that."""
    used, places = np.unique(columns[name], return_inverse=True)
    columns[name] = places.astype(_TYPES[name]).reshape(-1)
    return [table[place] for place in used.tolist()]
