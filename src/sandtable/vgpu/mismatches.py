"""Mismatches: ranks whose collectives do not agree, as findings.

Where the calls of two members of a group first differ in what they are, the calls cannot meet. The script often went
wrong before: a call that only some ranks make is taken for the next call of the others, and as long as both are alike
nothing is amiss. So the lines of the calls are aligned, and the first call without a counterpart is named.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from sandtable.findings import Evidence, Finding, Severity
from sandtable.vgpu.call_logs import CallLog, CallTable, MeetingError, describe_call, group_name
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.protocol import Call

__all__ = ["COLLECTIVE_MISMATCH", "agrees", "extra_calls", "find_mismatch", "mismatch", "sole_call"]

COLLECTIVE_MISMATCH = "collective-mismatch"

_REMEDY = (
    "make all ranks of the group reach the same call, with equal type, size, operator and root: move it out of "
    "branches that only some ranks take"
)
_ALIGNED = 400
"""Calls that are aligned at most."""

_MOST_SPLIT_CALLS = 4_000

Caller = tuple[int, Call]
Bools = npt.NDArray[np.bool_]


def agrees(one: Call, other: Call) -> bool:
    """Return whether two members' calls can be one collective."""
    sizes = {one.num_bytes, other.num_bytes} - {-1}
    return (
        one.op == other.op
        and one.dtype == other.dtype
        and len(sizes) <= 1
        and one.root == other.root
        and one.reduce == other.reduce
    )


def mismatch(group: str, parties: Sequence[Caller], *, entry: int = 0, before: Sequence[Evidence] = ()) -> MeetingError:
    """Return the error for members of one group, `entry` of the registry, that make different calls at the same place.

    `before` is what was seen on the way there.
    """
    calls: dict[tuple[str, str, int], list[int]] = {}
    texts = _distinguishing([call for _, call in parties])
    for (rank, call), text in zip(parties, texts, strict=True):
        calls.setdefault((text, call.file, call.line), []).append(rank)
    evidence = [
        Evidence(ranks=tuple(ranks), text=f"{'calls' if len(ranks) == 1 else 'call'} {text}", file=file, line=line)
        for (text, file, line), ranks in calls.items()
    ]
    return MeetingError(
        Finding(
            rule=COLLECTIVE_MISMATCH,
            severity=Severity.ERROR,
            message="every rank of a group must make the same calls in the same order, but call "
            f"{parties[0][1].seq} of {group} differs",
            ranks=tuple(sorted(rank for rank, _ in parties)),
            evidence=(*before, *evidence),
            remedy=_REMEDY,
        ),
        entry,
        parties,
    )


def find_mismatch(registry: GroupRegistry, logs: Mapping[int, CallLog]) -> MeetingError | None:
    """Return the first place, in the order of a rank's own calls, where captured members of a group disagree."""
    table = CallTable.of(registry, logs).collectives()
    if len(table.rows) < 2:
        return None
    rows = table.rows
    same = (table.entry[1:] == table.entry[:-1]) & (rows[1:, 1] == rows[:-1, 1])
    sized = (rows[1:, 4] >= 0) & (rows[:-1, 4] >= 0)
    differs = (rows[1:, [2, 3, 9, 10]] != rows[:-1, [2, 3, 9, 10]]).any(axis=1)
    differs |= sized & (rows[1:, 4] != rows[:-1, 4])
    differing = np.flatnonzero(same & differs).tolist() + list(_unfit_splits(registry, table))
    if not differing:
        return None
    at = min(differing, key=lambda index: int(table.row[index]))
    entry, seq = int(table.entry[at]), int(rows[at, 1])
    parties = list(table.meeting(entry, seq))
    return mismatch(group_name(registry, entry), parties, entry=entry, before=extra_calls(table, entry, parties))


def extra_calls(table: CallTable, entry: int, parties: Sequence[Caller]) -> tuple[Evidence, ...]:
    """Return the first call of one party, before those that do not meet, that has no counterpart on the other."""
    one, other = parties[0], _unlike(parties)
    if other is None:
        return ()
    mine, theirs = (
        [call for call in table.of_rank(rank, entry) if call.seq <= limit.seq] for rank, limit in (one, other)
    )
    found = sole_call(mine, theirs)
    if found is None or found[1].seq >= one[1].seq:
        return ()
    is_mine, call = found
    (rank, _), (absent, _) = (one, other) if is_mine else (other, one)
    text = f"calls {describe_call(call)}, call {call.seq} of the group, which rank {absent} does not make"
    return (Evidence(ranks=(rank,), text=text, file=call.file, line=call.line),)


def sole_call(mine: Sequence[Call], theirs: Sequence[Call]) -> tuple[bool, Call] | None:
    """Return the first call that only one of two ranks makes, and whether it is `mine`, aligning them by their lines.

    Where each makes as many calls as the other on lines of its own, these are counterparts: one that sends and one that
    receives.
    """
    first = next((k for k, (a, b) in enumerate(zip(mine, theirs, strict=False)) if _place(a) != _place(b)), None)
    start = min(len(mine), len(theirs)) if first is None else first
    mine, theirs = mine[start : start + _ALIGNED], theirs[start : start + _ALIGNED]
    matcher = SequenceMatcher(None, [_place(call) for call in mine], [_place(call) for call in theirs], autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    paired = {
        _place(call)
        for _, a, a_end, b, b_end in blocks
        if a_end - a == b_end - b
        for call in (*mine[a:a_end], *theirs[b:b_end])
    }
    for _, a, a_end, b, b_end in blocks:
        if a_end - a != b_end - b:
            is_mine, calls = (True, mine[a:a_end]) if a_end - a > b_end - b else (False, theirs[b:b_end])
            shared = min(a_end - a, b_end - b)
            return is_mine, next((call for call in calls if _place(call) not in paired), calls[shared])
    return None


def _place(call: Call) -> tuple[str, str, int]:
    return call.op, call.file, call.line


def _unlike(parties: Sequence[Caller]) -> Caller | None:
    """Return the first party whose call is not that of the first one, or stands on another line."""
    first = parties[0][1]
    unlike = [party for party in parties if not agrees(first, party[1])]
    return next((party for party in unlike if _place(party[1]) != _place(first)), unlike[0] if unlike else None)


def _distinguishing(calls: Sequence[Call]) -> list[str]:
    """Describe each call, and of root, reduce operator and splits what differs."""
    texts = [describe_call(call) for call in calls]
    if len({call.root for call in calls}) > 1:
        texts = [f"{text} from member {call.root}" if call.root >= 0 else text for text, call in _pairs(texts, calls)]
    if len({call.reduce for call in calls}) > 1:
        texts = [f"{text} with {call.reduce.upper()}" if call.reduce else text for text, call in _pairs(texts, calls)]
    if any(call.splits for call in calls):
        texts = [
            f"{text} giving {call.splits.replace('>', ' and taking ')} rows" if call.splits else text
            for text, call in _pairs(texts, calls)
        ]
    return texts


def _pairs(texts: Sequence[str], calls: Sequence[Call]) -> Iterator[tuple[str, Call]]:
    return zip(texts, calls, strict=True)


def _unfit_splits(registry: GroupRegistry, table: CallTable) -> Iterator[int]:
    """Yield the first call in which a member gives another number of rows than the other takes."""
    empty = table.texts.index("") if "" in table.texts else -1
    split = np.flatnonzero(table.rows[:, 11] != empty)[:_MOST_SPLIT_CALLS].tolist()
    calls: dict[tuple[int, int], dict[int, int]] = {}
    for index in split:
        calls.setdefault((int(table.entry[index]), int(table.rows[index, 1])), {})[int(table.rank[index])] = index
    lists = {text: _split_lists(text) for text in {table.texts[int(table.rows[index, 11])] for index in split}}
    unfit = []
    for (entry, _), index_of in calls.items():
        place = {rank: registry.position(entry, rank) for rank in index_of}
        rows = {rank: lists[table.texts[int(table.rows[index, 11])]] for rank, index in index_of.items()}
        if any(_is_unfit(rows[a][0], place[b], rows[b][1], place[a]) for a in rows for b in rows):
            unfit.append(min(index_of.values(), key=lambda index: int(table.row[index])))
    yield from sorted(unfit, key=lambda index: int(table.row[index]))[:1]


def _split_lists(text: str) -> tuple[list[int], list[int]]:
    given, _, got = text.partition(">")
    return [int(part) for part in given.split(",") if part], [int(part) for part in got.split(",") if part]


def _is_unfit(given: Sequence[int], to: int | None, got: Sequence[int], by: int | None) -> bool:
    if to is None or by is None or to >= len(given) or by >= len(got):
        return False
    return given[to] != got[by]
