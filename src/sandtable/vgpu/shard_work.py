"""Shard work: how the work of ranks follows from the pieces they hold.

Ranks that hold different shards do the same work but for the operators that work on pieces: a rank with thirteen pieces
computes thirteen norms, one with nine computes nine. Records are sorted into *types* (operator, dtypes, phase, stream
and script line, without shapes), and per type its calls, tensors and bytes are counted on every captured rank. Where
ranks differ, these numbers must be a linear function of the rank's row in the `PieceTable`, exactly, with some captured
ranks to spare (`MARGIN`): calls = a + b * pieces, found from a few ranks, then holds for all others. What is left when
the explained types are taken out must be equal, in order and shape: its digest takes the place of the whole one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sandtable.trace.columns import Records
from sandtable.trace.kinds import Kind
from sandtable.trace.records import RankRecords
from sandtable.trace.signature import Signature, hash_texts
from sandtable.vgpu.shards import PieceTable

__all__ = ["LAUNCH_BYTES", "MARGIN", "RankWork", "ShardExplanation", "TypeTotals", "explain"]

Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]

MARGIN = 3
"""An explanation counts if at least this many captured ranks more agree with it than are needed to find it."""

_PIECEWISE = (Kind.OPERATOR, Kind.HOST_SYNC, Kind.ALLOC, Kind.FREE)
"""Kinds of records that there may be one of for each piece."""

_SEGMENTS = (Kind.SEGMENT_ALLOC, Kind.SEGMENT_FREE)
"""What the caching allocator takes from the device depends on how blocks of many sizes fit, so it explains nothing."""

LAUNCH_BYTES = 10_000_000
"""A card moves about this many bytes in the time that one launch, or one wait of the host, takes."""

_TOLERANCE = 1e-9
"""The share of a number that is rounding."""


class TypeTotals(NamedTuple):
    """The records of one type on one rank, added up."""

    calls: int = 0
    tensors: int = 0
    num_bytes: int = 0
    content: int = 0
    """A hash of the records, whatever their order."""


@dataclass(frozen=True, slots=True, eq=False)
class RankWork:
    """The records of a captured rank, added up by type."""

    records: RankRecords
    type_of: Hashes
    """The type of each record; 0 where it cannot depend on pieces."""
    totals: Mapping[int, TypeTotals]
    launches: frozenset[int]
    """The types whose calls take time: all but those of memory blocks."""

    @classmethod
    def of(cls, records: RankRecords) -> "RankWork":
        """Add up the records of a rank."""
        table = records.records
        type_of, contents = _types_and_contents(records)
        is_operator = table.kind == Kind.OPERATOR
        amounts = np.array([_amounts(signature) for signature in records.signatures], dtype=np.int64).reshape(-1, 2)
        counted = np.ones((len(table), 3), dtype=np.int64)
        counted[:, 1:] = 0
        counted[is_operator, 1:] = amounts[table.ref[is_operator]]
        types, inverse = np.unique(type_of, return_inverse=True)
        totals, hashes = np.zeros((len(types), 3), dtype=np.int64), np.zeros(len(types), dtype=np.uint64)
        np.add.at(totals, inverse, counted)
        np.add.at(hashes, inverse, contents)
        rows = zip(types.tolist(), *totals.T.tolist(), hashes.tolist(), strict=True)
        return cls(
            records=records,
            type_of=type_of,
            totals={key: TypeTotals(*total) for key, *total in rows if key},
            launches=frozenset(type_of[np.isin(table.kind, (Kind.OPERATOR, Kind.HOST_SYNC))].tolist()),
        )

    def digest_without(self, types: Sequence[int]) -> str:
        """Return the digest of the work without the given types, and without what the allocator takes."""
        table = self.records.records
        kept = ~np.isin(self.type_of, np.array(types, dtype=np.uint64)) & ~np.isin(table.kind, _SEGMENTS)
        kept_records = Records.of({name: column[kept] for name, column in table.columns.items()})
        return replace(self.records, records=kept_records).digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardExplanation:
    """How the work of captured ranks follows from their pieces."""

    types: tuple[int, ...]
    """The types that do."""
    costs: Floats
    """Per rank of the table, what the work on its pieces costs, in bytes moved."""
    needs_more: bool
    """Whether more captured ranks would decide about a type."""


def explain(work: Mapping[int, RankWork], pieces: PieceTable) -> ShardExplanation:
    """Explain by their pieces where captured ranks differ."""
    ranks = sorted(work)
    types = sorted({key for rank in ranks for key in work[rank].totals})
    rows = {key: [work[rank].totals.get(key, TypeTotals()) for rank in ranks] for key in types}
    varying = [key for key in types if len(set(rows[key])) > 1]
    observed = np.array([[total[:3] for total in rows[key]] for key in varying], dtype=np.float64)
    fit = _fit(observed.reshape(len(varying), len(ranks), 3).swapaxes(0, 1).reshape(len(ranks), -1), ranks, pieces)
    is_explained = np.all(fit.is_explained.reshape(-1, 3), axis=1)
    launches = frozenset[int]().union(*(work[rank].launches for rank in ranks))
    cost = [(LAUNCH_BYTES if key in launches else 0, 0, 1) for key in varying]
    return ShardExplanation(
        types=tuple(key for key, is_known in zip(varying, is_explained, strict=True) if is_known),
        costs=fit.predicted @ np.array(cost, dtype=np.float64).reshape(-1),
        needs_more=fit.needs_more,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """Linear functions of the pieces: which columns they explain, and their values for all ranks of the table."""

    is_explained: npt.NDArray[np.bool_]
    predicted: Floats
    needs_more: bool


def _fit(observed: Floats, ranks: Sequence[int], pieces: PieceTable) -> _Fit:
    """Explain each column of `observed`, which has one row per rank, by the simplest hypothesis that holds."""
    num_ranks, num_columns = observed.shape
    rows = pieces.of(ranks)
    is_explained, might_be = np.zeros(num_columns, dtype=np.bool_), np.zeros(num_columns, dtype=np.bool_)
    predicted = np.zeros((len(pieces.ranks), num_columns))
    limit = _TOLERANCE * np.maximum(np.abs(observed).max(axis=0, initial=1.0), 1.0)
    for names in _hypotheses(pieces):
        chosen = [pieces.names.index(name) for name in names]
        scale = np.maximum(np.abs(pieces.rows[:, chosen]).max(axis=0), 1)
        factors = np.column_stack([np.ones(num_ranks), rows[:, chosen] / scale])
        solution, _, rank, _ = np.linalg.lstsq(factors, observed, rcond=None)
        holds = (np.abs(factors @ solution - observed) <= limit).all(axis=0) & ~is_explained
        if num_ranks - rank < MARGIN:
            might_be |= holds
            continue
        everywhere = np.column_stack([np.ones(len(pieces.ranks)), pieces.rows[:, chosen] / scale])
        predicted[:, holds] = everywhere @ solution[:, holds]
        is_explained |= holds
    return _Fit(is_explained, predicted, bool((might_be & ~is_explained).any()))


def _hypotheses(pieces: PieceTable) -> Iterator[Sequence[str]]:
    """Yield columns that may explain a number, the simplest first."""
    yield from (("pieces",), ("pieces", "elements"), ("pieces", "whole"), ("pieces", "none", "one"))
    for flag in pieces.flags:
        yield "pieces", f"pieces of {flag}"
        yield "pieces", f"none of {flag}", f"none but {flag}"
    for reduction in pieces.reductions:
        yield f"pieces{reduction}", f"slices{reduction}"
        yield f"pieces{reduction}", f"elements{reduction}", f"whole{reduction}"
    for norm in pieces.norms:
        yield f"pieces{norm}", f"elements{norm}"
    for flag in pieces.flags:
        yield "pieces", "elements", f"pieces of {flag}", f"elements of {flag}"
    yield ("pieces", "elements", "whole", "none", "one")


def _types_and_contents(records: RankRecords) -> tuple[Hashes, Hashes]:
    """Return hashes of the type and of the content of each record."""
    table = records.records
    is_operator = table.kind == Kind.OPERATOR
    refs = table.ref[is_operator]
    names, contents = np.zeros(len(table), dtype=np.uint64), table.value.astype(np.uint64)
    names[is_operator] = hash_texts(map(_type_name, records.signatures))[refs]
    contents[is_operator] = records.signatures.hashes[refs]
    type_of = _mix(names, records.line_hashes()[table.line], table.kind, table.phase, table.stream)
    type_of[~np.isin(table.kind, _PIECEWISE)] = 0
    return type_of, _mix(contents)


def _type_name(signature: Signature) -> str:
    specs = (*signature.inputs, *signature.outputs)
    return " ".join([signature.op, *dict.fromkeys(f"{spec.dtype} {spec.device}" for spec in specs)])


def _amounts(signature: Signature) -> tuple[int, int]:
    specs = (*signature.inputs, *signature.outputs)
    return len(specs), sum(spec.size_bytes for spec in specs)


def _mix(*columns: npt.NDArray[Any]) -> Hashes:
    """Return one 64-bit hash per row (the finalizer of SplitMix64, once per column)."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed
