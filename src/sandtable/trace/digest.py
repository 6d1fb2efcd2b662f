"""Digest: one hash of a rank's work, which decides whether two ranks did the same.

Covered, in order: kind, phase, stream, value and script line of every record; operators by the content of their
signature; calls by operator, group index, group size, sequence number, dtype, bytes, relative peer, reduction, splits,
stream, batch and line. Tables are hashed once and columns mapped through them, so the order in which two ranks number
their signatures or lines does not count. Left out: the rank's number, the members of its groups, ids of memory blocks,
notes, and what the capture cost. Ids of events count by order of first appearance.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.errors import TraceError
from sandtable.trace.columns import Calls, Records
from sandtable.trace.kinds import Kind

__all__ = ["digest_work"]

Hashes = npt.NDArray[np.uint64]

_UNNUMBERED = (Kind.ALLOC, Kind.FREE, Kind.SEGMENT_ALLOC, Kind.SEGMENT_FREE)
_EVENTS = (Kind.EVENT_RECORD, Kind.EVENT_WAIT)


def digest_work(
    records: Records, calls: Calls, *, signatures: Hashes, lines: Hashes, tables: Mapping[str, Hashes]
) -> str:
    """Return the digest of both tables; `tables` has group sizes, and hashes of what columns of `calls` point at."""
    columns: list[npt.NDArray[Any]] = [records.kind, records.phase, records.stream, records.value]
    columns += [_refs(records, signatures), _look_up(lines, records.line, "line")]
    columns += [_look_up(tables[name], getattr(calls, name), name) for name in ("op", "dtype", "reduce", "splits")]
    columns += [_look_up(tables["group_size"], calls.group, "group"), _look_up(lines, calls.line, "line")]
    columns += [calls.group, calls.seq, calls.bytes_in, calls.bytes_out, calls.peer, calls.stream]
    columns += [calls.is_async, calls.batch]
    state = hashlib.blake2b(f"{len(records)} {len(calls)}".encode(), digest_size=16)
    for column in columns:
        state.update(np.ascontiguousarray(column).data)
    return state.hexdigest()


def _refs(records: Records, signatures: Hashes) -> Hashes:
    refs = records.ref.astype(np.uint64)
    operators = records.kind == Kind.OPERATOR
    refs[operators] = _look_up(signatures, records.ref[operators], "signature")
    events = np.isin(records.kind, _EVENTS)
    refs[events] = _by_first_appearance(records.ref[events])
    refs[np.isin(records.kind, _UNNUMBERED)] = 0
    return refs


def _by_first_appearance(ids: npt.NDArray[np.uint32]) -> Hashes:
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.uint64)
    order[np.argsort(first)] = np.arange(len(first), dtype=np.uint64)
    return order[inverse]


def _look_up(table: Hashes, indices: npt.NDArray[Any], name: str) -> Hashes:
    if len(indices) and int(indices.max()) >= len(table):
        raise TraceError(
            f"a {name} index of a rank's records must be below {len(table)}, the length of its table, "
            f"but got {int(indices.max())}; capture the run again"
        )
    hashes: Hashes = table[indices]
    return hashes
