"""Columns: the two tables that a captured rank fills, one numpy array per column.

`Records` has one row for everything the rank did, in the order it was issued; `Calls` has one row for each collective
or point-to-point call, to which records of kind COLLECTIVE and WAIT point.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sandtable.errors import TraceError

__all__ = ["Calls", "ColumnTable", "Records"]

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_DTYPES: dict[object, type[np.generic]] = {U8: np.uint8, U16: np.uint16, U32: np.uint32, I32: np.int32, I64: np.int64}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnTable:
    """Columns of equal length; `of` makes one from lists and arrays of any integer type."""

    @classmethod
    def of(cls, columns: Mapping[str, npt.ArrayLike] | None = None, /, **more: npt.ArrayLike) -> Self:
        """Make a table of the given columns; missing columns get their default (0; -1 for `peer`)."""
        columns_given = {**(columns or {}), **more}
        dtypes = cls.dtypes()
        if unknown := columns_given.keys() - dtypes.keys():
            raise TraceError(
                f"columns of {cls.__name__} must be among {', '.join(dtypes)}, but got {', '.join(sorted(unknown))}; "
                "remove the unknown columns"
            )
        num_rows = len(np.atleast_1d(np.asarray(next(iter(columns_given.values()))))) if columns_given else 0
        filled: dict[str, Any] = {}
        for name, dtype in dtypes.items():
            column = (
                _convert(columns_given[name], dtype, name) if name in columns_given else _default(name, dtype, num_rows)
            )
            if len(column) != num_rows:
                raise TraceError(
                    f"columns of {cls.__name__} must have equal length, but {name} has {len(column)} rows and another "
                    f"has {num_rows}; fill every column for every row"
                )
            filled[name] = column
        return cls(**filled)

    @classmethod
    def dtypes(cls) -> dict[str, type[np.generic]]:
        """Return the name and the type of each column."""
        return {field.name: _DTYPES[field.type] for field in fields(cls)}

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self.columns, other.columns
        return all(np.array_equal(mine[name], theirs[name]) for name in mine)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records(ColumnTable):
    """Everything one rank did, in the order its host issued it. `Kind` explains `ref` and `value`."""

    kind: U8
    ref: U32
    stream: U16
    phase: U8
    line: U32
    value: I64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls(ColumnTable):
    """The collective and point-to-point calls of one rank, in order.

    `op`, `dtype`, `reduce`, `splits` and `line` are indices into the tables of the `RankRecords`; `group` is an index
    into this rank's own list of groups. `seq` counts calls per group (point-to-point: per group, peer and direction).
    `bytes_in` is what this rank puts in, `bytes_out` what it gets out. `peer` is what makes equal ranks look equal:
    for point-to-point (peer's position - own position) modulo the group's size, for rooted collectives the root's
    position in the group, otherwise -1. `batch` is 0, or the number of the coalesced batch the call was issued in.
    """

    op: U16
    group: U16
    seq: U32
    dtype: U16
    bytes_in: I64
    bytes_out: I64
    peer: I32
    stream: U16
    line: U32
    is_async: U8
    batch: U32
    reduce: U8
    splits: U32


def _convert(column: npt.ArrayLike, dtype: type[np.generic], name: str) -> npt.NDArray[Any]:
    array = np.atleast_1d(np.asarray(column))
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    converted = array.astype(dtype)
    if array.size and not np.array_equal(converted, array):
        raise TraceError(
            f"values of column {name} must fit {np.dtype(dtype)}, but they range from {array.min()} to {array.max()}; "
            "number them from 0"
        )
    return np.ascontiguousarray(converted)


def _default(name: str, dtype: type[np.generic], num_rows: int) -> npt.NDArray[Any]:
    return np.full(num_rows, -1 if name == "peer" else 0, dtype=dtype)
