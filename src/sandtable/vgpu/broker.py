"""The broker: answers what a captured rank asks about other ranks, most of which do not run.

Think of a casting office with a few actors for thousands of parts. Every posting of a captured rank is kept. Asked what
member m of a group put in, the broker gives m's own posting if m is captured, and waits for it if it has yet to come;
else that of m's stand-in, the captured rank that does the same work, in the same place of *its* list of groups; and if
the stand-in is the one who asks, its own payload. No input or output happens here: `take_replies` says what to send to
whom.

Cost: an answer looks at each distinct source once, not at each member, so a gather of 12,288 ranks costs as much as
one of the few ranks that run. Which source speaks for which member is worked out once per group and set of captured
ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sandtable.vgpu.exchange import Call
from sandtable.vgpu.group_book import Chunk, GroupBook
from sandtable.vgpu.mismatches import (
    CallLog,
    Waiting,
    agrees,
    deadlock,
    find_mismatch,
    group_name,
    mismatch,
)
from sandtable.vgpu.stop import SCRIPT_ENDED

__all__ = ["Broker", "Reply"]

Ints = npt.NDArray[np.int64]
Payload = bytes | None
_AS_ASKER = -1
_FOLLOWERS = -1


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer for `rank`: `message` goes over the wire as it is, its first item the ticket of the question."""

    rank: int
    message: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """A captured rank that speaks for members of a group, and the group's place in its list (known if it stands in)."""

    rank: int
    place: int
    is_member: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Cast:
    """Who speaks for whom in one group: member k is spoken for by `sources[index[k]]`."""

    sources: tuple[_Source, ...]
    index: npt.NDArray[np.int32]
    packed: bytes
    has_stand_ins: bool


@dataclass(slots=True, eq=False)
class _Wait:
    rank: int
    ticket: int
    entry: int
    call: Call
    payload: Payload
    is_gather: bool
    cast: "_Cast | None" = None
    table: list[Payload] = field(default_factory=list)
    """What the first sources of `cast` said, so far."""


@dataclass(slots=True, eq=False)
class _Actor:
    """A captured rank: what it posted, what it waits for, and how it ended."""

    is_primary: bool
    posts: dict[tuple[int, int], tuple[Payload, Call]] = field(default_factory=dict)
    sends: dict[tuple[int, int, int, int], tuple[Payload, Call]] = field(default_factory=dict)
    waits: dict[int, _Wait] = field(default_factory=dict)
    asides: set[int] = field(default_factory=set)
    """Tickets of other threads than the main one."""
    heeds_stand_ins: bool = True
    """False once it had to wait in vain for one: they do not do what the rank in whose place they speak would."""
    log: CallLog = field(default_factory=CallLog)
    ended: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """An answer given with the help of stand-ins: it may turn out to be out of date."""

    wait: _Wait
    cast: _Cast
    table: tuple[Payload, ...]


class Broker:
    """Postings and waits of all captured ranks. `stand_ins` gives, for every rank of the world, who speaks for it."""

    def __init__(self, book: GroupBook, stand_ins: Callable[[], Ints]) -> None:
        self._book = book
        self._stand_ins = stand_ins
        self._actors: dict[int, _Actor] = {}
        self._is_captured = np.zeros(book.world_size, dtype=np.bool_)
        self._casts: dict[int, _Cast] = {}
        self._first_calls: dict[tuple[int, int], tuple[int, Call]] = {}
        self._blocked: dict[tuple[int, ...], list[_Wait]] = {}
        self._leaders: dict[tuple[int, int], _Wait] = {}
        self._complete: dict[tuple[int, int], tuple[Payload, ...]] = {}
        self._told: list[_Told] = []
        self._replies: list[Reply] = []

    def admit(self, rank: int, *, is_primary: bool) -> None:
        """`rank` is about to run, for the first time or again."""
        if rank in self._actors:
            self._book.forget(rank)
            self._told = [told for told in self._told if told.wait.rank != rank]
            self._first_calls = {key: first for key, first in self._first_calls.items() if first[0] != rank}
        self._actors[rank] = _Actor(is_primary)
        self._is_captured[rank] = True
        self._casts.clear()
        self._complete.clear()
        self._retry(self._pending())

    def announce(self, rank: int, chunk: Chunk) -> None:
        """`rank` saw groups made."""
        if self._book.announce(rank, chunk) and len(self._actors) > 1:
            self._casts.clear()
        self._retry(self._blocked.pop((rank,), ()))

    def gather(self, rank: int, ticket: int, call: Call, payload: Payload) -> None:
        """A collective of `rank`, which waits for the answer unless `ticket` is 0. Raises MismatchError."""
        entry = self._book.own(rank)[call.group]
        first = self._first_calls.setdefault((entry, call.seq), (rank, call))
        if first[0] != rank and not agrees(first[1], call):
            raise mismatch(group_name(self._book, entry), first, (rank, call))
        self._actors[rank].posts[call.group, call.seq] = payload, call
        if ticket:
            self._ask(_Wait(rank, ticket, entry, call, payload, is_gather=True))
        self._retry(self._blocked.pop((rank, call.group, call.seq), ()))

    def send(self, rank: int, call: Call, payload: Payload) -> None:
        key = call.group, call.peer, call.tag, call.seq
        self._actors[rank].sends[key] = payload, call
        self._retry(self._blocked.pop((rank, *key), ()))

    def receive(self, rank: int, ticket: int, call: Call) -> None:
        """`rank` waits for what `call.peer` sends. Raises MismatchError."""
        self._ask(_Wait(rank, ticket, self._book.own(rank)[call.group], call, None, is_gather=False))

    def log(self, rank: int, texts: Iterable[str], rows: bytes) -> None:
        """Collectives that `rank` made, those posted here and those too large for it."""
        self._actors[rank].log.add(texts, rows)

    def end(self, rank: int, reason: str) -> None:
        """`rank` ended; what it posted stays. Raises MismatchError if a rank waits for what will never come."""
        actor = self._actors[rank]
        actor.ended = reason
        actor.waits.clear()
        self._retry(self._pending())

    def take_replies(self) -> list[Reply]:
        """What has to be sent, once."""
        replies, self._replies = self._replies, []
        return replies

    def is_stuck(self) -> bool:
        """Whether every rank that runs waits: nothing can come any more, unless other threads of a rank still work."""
        live = [actor for actor in self._actors.values() if actor.ended is None]
        return bool(live) and all(actor.waits for actor in live)

    def is_aside(self) -> bool:
        """Whether a rank that runs waits in other threads than the main one only, which may be busy elsewhere."""
        live = [actor for actor in self._actors.values() if actor.ended is None]
        return any(actor.waits.keys() <= actor.asides for actor in live)

    def note_aside(self, rank: int, ticket: int) -> None:
        """The question of that ticket is not the main thread's."""
        self._actors[rank].asides.add(ticket)

    def break_deadlock(self) -> None:
        """Gives up on stand-ins for ranks that wait for nothing else; raises MismatchError if that helps nobody."""
        pending = self._pending()
        for wait in pending:
            self._actors[wait.rank].heeds_stand_ins = False
        self._retry(pending)
        if not self._replies:
            raise self.find_mismatch() or deadlock([self._describe(wait) for wait in self._pending()])

    def find_mismatch(self) -> Exception | None:
        """The first disagreement between logs of captured ranks, large collectives included."""
        return find_mismatch(self._book, {rank: actor.log for rank, actor in self._actors.items()})

    def stale(self) -> set[int]:
        """Primaries that were told something by a stand-in that would be answered otherwise now."""
        found: set[int] = set()
        pairs: dict[tuple[_Cast, _Cast], Ints] = {}
        for told in self._told:
            cast = self._cast(told.wait.entry)
            if told.wait.rank in found or cast.sources == told.cast.sources:
                continue
            if (told.cast, cast) not in pairs:
                pairs[told.cast, cast] = _distinct_pairs(told.cast.index, cast.index)
            if self._is_outdated(told, cast, pairs[told.cast, cast]):
                found.add(told.wait.rank)
        return found

    def _pending(self) -> list[_Wait]:
        return [wait for actor in self._actors.values() for wait in actor.waits.values()]

    def _ask(self, wait: _Wait) -> None:
        self._actors[wait.rank].waits[wait.ticket] = wait
        self._retry([wait])

    def _retry(self, waits: Iterable[_Wait]) -> None:
        for wait in waits:
            actor = self._actors[wait.rank]
            if actor.waits.get(wait.ticket) is wait:
                message = self._answer_gather(wait) if wait.is_gather else self._answer_receive(wait)
                if message is not None:
                    del actor.waits[wait.ticket]
                    self._replies.append(Reply(wait.rank, message))
                    if wait.is_gather:
                        self._retry(self._blocked.pop((_FOLLOWERS, wait.entry, wait.call.seq), ()))

    def _answer_gather(self, wait: _Wait) -> tuple[object, ...] | None:
        cast, key = self._cast(wait.entry), (wait.entry, wait.call.seq)
        if not cast.has_stand_ins:
            # All members run and are told the same: one of those who wait, the leader, finds it out for all.
            if key in self._complete:
                return wait.ticket, "gather", self._complete[key], cast.packed
            leader = self._leaders.setdefault(key, wait)
            if leader is not wait and self._actors[leader.rank].waits.get(leader.ticket) is leader:
                self._blocked.setdefault((_FOLLOWERS, *key), []).append(wait)
                return None
            self._leaders[key] = wait
        if wait.cast is not cast:
            wait.cast, wait.table = cast, []
        for source in cast.sources[len(wait.table) :]:
            found = self._posting(wait, source)
            if found is None:
                return None
            if isinstance(found, str):
                return wait.ticket, "stop", found
            wait.table.append(found[0])
        table = tuple(wait.table)
        if not cast.has_stand_ins:
            self._complete[key] = table
        elif self._actors[wait.rank].is_primary:
            self._told.append(_Told(wait, cast, table))
        return wait.ticket, "gather", table, cast.packed

    def _posting(self, wait: _Wait, source: _Source) -> tuple[Payload] | str | None:
        """What `source` put in; None if that has yet to come; a reason to stop if it never will."""
        if source.rank == wait.rank or not (source.is_member or self._actors[wait.rank].heeds_stand_ins):
            return (wait.payload,)
        actor = self._actors[source.rank]
        place = self._book.place(source.rank, wait.entry) if source.is_member else source.place
        if place == _AS_ASKER:
            place = wait.call.group
        posted = None if place is None else actor.posts.get((place, wait.call.seq))
        if posted is not None:
            is_fit = source.is_member or agrees(posted[1], wait.call)
            return (posted[0] if is_fit else wait.payload,)
        if not source.is_member and actor.ended is not None:
            return (wait.payload,)
        key = (source.rank,) if place is None else (source.rank, place, wait.call.seq)
        return self._missing(wait, actor, key)

    def _answer_receive(self, wait: _Wait) -> tuple[object, ...] | None:
        call, peer = wait.call, wait.call.peer
        speaker, key = self._sender(wait)
        if speaker != peer and (key is None or not self._actors[wait.rank].heeds_stand_ins):
            return wait.ticket, "receive", None
        actor = self._actors[speaker]
        sent = None if key is None else actor.sends.get(key)
        if sent is not None:
            payload, other = sent
            if speaker == peer and not agrees(_sized(other), _sized(call)):
                raise mismatch(group_name(self._book, wait.entry), (peer, other), (wait.rank, call))
            return wait.ticket, "receive", payload
        if speaker != peer and actor.ended is not None:
            return wait.ticket, "receive", None
        found = self._missing(wait, actor, (speaker,) if key is None else (speaker, *key))
        return None if found is None else (wait.ticket, "stop", found)

    def _sender(self, wait: _Wait) -> tuple[int, tuple[int, int, int, int] | None]:
        """Who sends in place of the peer, and the key of that posting: the same offset in the stand-in's own group."""
        call, entry, book = wait.call, wait.entry, self._book
        if call.peer in self._actors:
            place = book.place(call.peer, entry)
            return call.peer, None if place is None else (place, wait.rank, call.tag, call.seq)
        speaker = int(self._stand_ins()[call.peer])
        here, there = book.position(entry, wait.rank), book.position(entry, call.peer)
        if here is None or there is None:
            return speaker, None
        place = int(book.presumed_places(entry)[there]) if book.is_global(entry) else call.group
        own = book.own(speaker)
        if place >= len(own) or len(book.members[own[place]]) != len(book.members[entry]):
            return speaker, None
        members = book.members[own[place]]
        position = book.position(own[place], speaker)
        assert position is not None, "a rank is a member of every group in its own list"
        receiver = int(members[(position + here - there) % len(members)])
        return speaker, (place, receiver, call.tag, call.seq)

    def _missing(self, wait: _Wait, actor: _Actor, key: tuple[int, ...]) -> str | None:
        """Blocks the wait until `key` is posted; a rank stopped by the capture stops those who wait for it."""
        if actor.ended is None:
            self._blocked.setdefault(key, []).append(wait)
            return None
        if actor.ended != SCRIPT_ENDED:
            return actor.ended
        raise self.find_mismatch() or deadlock([self._describe(wait)])

    def _cast(self, entry: int) -> _Cast:
        cast = self._casts.get(entry)
        if cast is None:
            cast = self._casts[entry] = self._make_cast(entry)
        return cast

    def _make_cast(self, entry: int) -> _Cast:
        members = self._book.members[entry]
        captured = self._is_captured[members]
        speakers = np.where(captured, members, self._stand_ins()[members])
        presumed = self._book.presumed_places(entry)
        places = presumed if self._book.is_global(entry) else np.full_like(presumed, _AS_ASKER)
        span = len(self._book) + 2
        codes = (speakers * span + places + 1) * 2 + captured
        distinct, first, index = np.unique(codes, return_index=True, return_inverse=True)
        assert len(distinct) == len(first)
        sources = tuple(_Source(int(speakers[k]), int(places[k]), bool(captured[k])) for k in first.tolist())
        packed = index.astype(np.int32).ravel()
        return _Cast(sources, packed, packed.tobytes(), not captured.all())

    def _is_outdated(self, told: _Told, cast: _Cast, pairs: Ints) -> bool:
        table = [self._posted_by(told.wait, source) for source in cast.sources]
        return any(table[new] is not None and table[new] != (told.table[old],) for old, new in pairs.tolist())

    def _posted_by(self, wait: _Wait, source: _Source) -> tuple[Payload] | None:
        if source.rank == wait.rank:
            return (wait.payload,)
        place = self._book.place(source.rank, wait.entry) if source.is_member else source.place
        place = wait.call.group if place == _AS_ASKER else place
        posted = None if place is None else self._actors[source.rank].posts.get((place, wait.call.seq))
        return (posted[0],) if posted is not None and agrees(posted[1], wait.call) else None

    def _describe(self, wait: _Wait) -> Waiting:
        missing = self._missing_members(wait)
        return Waiting(
            rank=wait.rank,
            call=wait.call,
            group=group_name(self._book, wait.entry),
            missing=tuple(missing),
            ended=tuple(rank for rank in missing if rank in self._actors and self._actors[rank].ended is not None),
        )

    def _missing_members(self, wait: _Wait) -> Sequence[int]:
        if not wait.is_gather:
            return [wait.call.peer]
        direct = [source.rank for source in self._cast(wait.entry).sources if source.is_member]
        places = [(rank, self._book.place(rank, wait.entry)) for rank in direct if rank != wait.rank]
        return [
            rank for rank, place in places if place is None or (place, wait.call.seq) not in self._actors[rank].posts
        ]


def _sized(call: Call) -> Call:
    """The call with its direction left out, so that a send and a receive can be held against each other."""
    return Call(group=0, seq=call.seq, op="", dtype=call.dtype, num_bytes=call.num_bytes)


def _distinct_pairs(old: npt.NDArray[np.int32], new: npt.NDArray[np.int32]) -> Ints:
    """Each combination of an old and a new number that some member has, once."""
    span = int(new.max()) + 1
    codes = np.unique(old.astype(np.int64) * span + new)
    return np.stack([codes // span, codes % span], axis=1)
