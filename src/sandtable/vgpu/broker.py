"""The broker: answers the questions of captured ranks about other ranks, most of which do not run.

Think of a casting office with a few actors for thousands of parts. The broker keeps every posting of a captured rank.
For member m of a group it returns m's own posting if m is captured, waiting for it if need be; else that of m's
stand-in, the captured rank that does the same work, in the same place of *its* list of groups; if the stand-in itself
asks, its own payload. No input or output happens here: `take_replies` returns what to send to whom.

Cost: an answer looks at each source once (see `sources.py`), not at each member, so a gather of 12,288 ranks costs as
much as one of the few ranks that run. Sources are computed once per group and set of captured ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sandtable.errors import MismatchError
from sandtable.vgpu.call_logs import CallLog, CallTable, Waiting, group_name
from sandtable.vgpu.deadlocks import deadlock, find_missing
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.host_clock import HostTime
from sandtable.vgpu.lateness import Lateness
from sandtable.vgpu.messages import find_message_mismatch, message_mismatch
from sandtable.vgpu.mismatches import agrees, find_mismatch, mismatch
from sandtable.vgpu.protocol import Answer, Call, GatherAnswered, GroupsMade, ReceiveAnswered, StopOrdered
from sandtable.vgpu.sources import AS_CALLER, GroupSources, Source
from sandtable.vgpu.stop import FAILED, SCRIPT_ENDED

__all__ = ["Broker", "Reply"]

Ints = npt.NDArray[np.int64]
Payload = bytes | None
_FOLLOWERS = -1
_LARGE_BYTES = 4096
"""Payloads from this size on are kept once, however many ranks post them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer for `rank`."""

    rank: int
    answer: Answer


@dataclass(slots=True, eq=False)
class _Wait:
    rank: int
    ticket: int
    entry: int
    call: Call
    payload: Payload
    is_gather: bool
    group_sources: GroupSources | None = None
    table: list[Payload] = field(default_factory=list)
    """What the first of `group_sources` have put in, so far."""


@dataclass(slots=True, eq=False)
class _CapturedRank:
    """A captured rank: its postings, its waits, and how it ended."""

    is_primary: bool
    posts: dict[tuple[int, int], tuple[Payload, Call]] = field(default_factory=dict)
    sends: dict[tuple[int, int, int, int], tuple[Payload, Call]] = field(default_factory=dict)
    waits: dict[int, _Wait] = field(default_factory=dict)
    asides: set[int] = field(default_factory=set)
    """Tickets of threads other than the main one."""
    heeds_stand_ins: bool = True
    """False once the rank waited in vain for a stand-in, which then does not work like the rank it stands in for."""
    log: CallLog = field(default_factory=CallLog)
    ended: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _GivenAnswer:
    """An answer that used stand-ins: it may turn out to be out of date."""

    wait: _Wait
    group_sources: GroupSources
    table: tuple[Payload, ...]


class Broker:
    """Postings and waits of all captured ranks. `stand_ins` returns the stand-in of every rank of the world."""

    def __init__(self, registry: GroupRegistry, stand_ins: Callable[[], Ints]) -> None:
        self._registry = registry
        self._stand_ins = stand_ins
        self._captured: dict[int, _CapturedRank] = {}
        self._is_captured = np.zeros(registry.world_size, dtype=np.bool_)
        self._sources: dict[int, GroupSources] = {}
        self._first_calls: dict[tuple[int, int], tuple[int, Call]] = {}
        self._blocked: dict[tuple[int, ...], list[_Wait]] = {}
        self._leaders: dict[tuple[int, int], _Wait] = {}
        self._complete: dict[tuple[int, int], tuple[Payload, ...]] = {}
        self._given: list[_GivenAnswer] = []
        self._large: dict[bytes, bytes] = {}
        self._stop_reason: str | None = None
        self._replies: list[Reply] = []
        self.lateness = Lateness()

    def admit(self, rank: int, *, is_primary: bool) -> None:
        """Prepare for `rank` to run, for the first time or again."""
        if rank in self._captured:
            self._registry.forget(rank)
            self._given = [given for given in self._given if given.wait.rank != rank]
            self._first_calls = {key: first for key, first in self._first_calls.items() if first[0] != rank}
        self._captured[rank] = _CapturedRank(is_primary)
        self._is_captured[rank] = True
        self._sources.clear()
        self._complete.clear()
        self._retry(self._pending())

    def announce(self, rank: int, groups: GroupsMade) -> None:
        """Note groups that `rank` saw made."""
        if self._registry.announce(rank, groups) and len(self._captured) > 1:
            self._sources.clear()
        self._retry(self._blocked.pop((rank,), ()))

    def arrive(self, rank: int, call: Call, time: HostTime, timeout_seconds: float) -> None:
        """Note when a rank comes to a collective, by its own clock."""
        if self._stop_reason is None:
            self.lateness.arrive(rank, self._registry.own(rank)[call.group], call, time, timeout_seconds)

    def gather(self, rank: int, ticket: int, call: Call, payload: Payload) -> None:
        """Take a collective of `rank`, which waits for the answer unless `ticket` is 0. Raises MismatchError."""
        if self._is_stopped(rank, ticket):
            return
        entry = self._registry.own(rank)[call.group]
        payload = self._once(payload)
        first = self._first_calls.setdefault((entry, call.seq), (rank, call))
        wait = _Wait(rank, ticket, entry, call, payload, is_gather=True)
        if first[0] != rank and not agrees(first[1], call):
            if ticket:
                self._captured[rank].waits[ticket] = wait
            raise self.find_mismatch() or mismatch(
                group_name(self._registry, entry), [first, (rank, call)], entry=entry
            )
        self._captured[rank].posts[call.group, call.seq] = payload, call
        if ticket:
            self._ask(wait)
        self._retry(self._blocked.pop((rank, call.group, call.seq), ()))

    def send(self, rank: int, call: Call, payload: Payload) -> None:
        key = call.group, call.peer, call.tag, call.seq
        self._captured[rank].sends[key] = self._once(payload), call
        self._retry(self._blocked.pop((rank, *key), ()))

    def receive(self, rank: int, ticket: int, call: Call) -> None:
        """Take a receive of `rank`, which waits for `call.peer`. Raises MismatchError."""
        if not self._is_stopped(rank, ticket):
            self._ask(_Wait(rank, ticket, self._registry.own(rank)[call.group], call, None, is_gather=False))

    def log(self, rank: int, texts: Iterable[str], rows: bytes) -> None:
        """Log calls that `rank` made, also those too large to be posted here."""
        self._captured[rank].log.add(texts, rows)

    def end(self, rank: int, reason: str) -> None:
        """Note that `rank` ended; its postings stay. Raises MismatchError if a rank waits for it in vain."""
        captured = self._captured[rank]
        captured.ended = reason
        captured.waits.clear()
        self._retry(self._pending())

    def stop_all(self, reason: str) -> None:
        """Answer every rank that waits, and every one that asks from now on, with a stop."""
        self._stop_reason = reason
        for wait in self._pending():
            self._replies.append(Reply(wait.rank, StopOrdered(wait.ticket, reason)))
        for captured in self._captured.values():
            captured.waits.clear()

    def take_replies(self) -> list[Reply]:
        """Return the replies to send, and forget them."""
        replies, self._replies = self._replies, []
        return replies

    def is_stuck(self) -> bool:
        """Return whether every running rank waits: nothing more can come, unless other threads of a rank still work."""
        live = [captured for captured in self._captured.values() if captured.ended is None]
        return bool(live) and all(captured.waits for captured in live)

    def is_aside(self) -> bool:
        """Return whether a running rank waits only in threads other than the main one, which may be busy elsewhere."""
        live = [captured for captured in self._captured.values() if captured.ended is None]
        return any(captured.waits.keys() <= captured.asides for captured in live)

    def note_aside(self, rank: int, ticket: int) -> None:
        """Note that the request of this ticket is not the main thread's."""
        self._captured[rank].asides.add(ticket)

    def break_deadlock(self) -> None:
        """Stop waiting for stand-ins; raise MismatchError if no rank can continue even then."""
        pending = self._pending()
        for wait in pending:
            self._captured[wait.rank].heeds_stand_ins = False
        self._retry(pending)
        if not self._replies:
            raise self._stuck(pending)

    def find_mismatch(self) -> MismatchError | None:
        """Return the first disagreement between the logs of captured ranks, large collectives included."""
        ended = {rank for rank, captured in self._captured.items() if captured.ended == SCRIPT_ENDED}
        logs = self._logs()
        return (
            find_mismatch(self._registry, logs)
            or find_message_mismatch(self._registry, logs, ended=ended)
            or find_missing(self._registry, self.call_table().collectives(), ended=ended)
        )

    def waiting(self) -> list[Waiting]:
        """Return what ranks wait for."""
        return [self._describe(wait) for wait in self._pending()]

    def call_table(self) -> CallTable:
        """Return the calls of all captured ranks."""
        return CallTable.of(self._registry, self._logs())

    def _logs(self) -> dict[int, CallLog]:
        return {rank: captured.log for rank, captured in self._captured.items()}

    def _stuck(self, waits: Sequence[_Wait]) -> MismatchError:
        """Return the error for ranks that wait in vain."""
        return self.find_mismatch() or deadlock(
            [self._describe(wait) for wait in waits], self.call_table().collectives()
        )

    def stale(self) -> set[int]:
        """Return the primaries that got an answer from a stand-in that would be different now."""
        stale: set[int] = set()
        pairs: dict[tuple[GroupSources, GroupSources], Ints] = {}
        for given in self._given:
            then, now = given.group_sources, self._sources_of(given.wait.entry)
            if given.wait.rank in stale or now.sources == then.sources:
                continue
            if (then, now) not in pairs:
                pairs[then, now] = then.pairs_with(now)
            if self._is_outdated(given, now, pairs[then, now]):
                stale.add(given.wait.rank)
        return stale

    def _once(self, payload: Payload) -> Payload:
        """Return the payload, or an equal one that was posted before: what routers choose is large and the same."""
        if payload is None or len(payload) < _LARGE_BYTES:
            return payload
        return self._large.setdefault(payload, payload)

    def _pending(self) -> list[_Wait]:
        return [wait for captured in self._captured.values() for wait in captured.waits.values()]

    def _is_stopped(self, rank: int, ticket: int) -> bool:
        """Return whether all ranks are to stop, and order it if the rank waits."""
        if self._stop_reason is None:
            return False
        if ticket:
            self._replies.append(Reply(rank, StopOrdered(ticket, self._stop_reason)))
        return True

    def _ask(self, wait: _Wait) -> None:
        self._captured[wait.rank].waits[wait.ticket] = wait
        self._retry([wait])

    def _retry(self, waits: Iterable[_Wait]) -> None:
        for wait in waits:
            captured = self._captured[wait.rank]
            if captured.waits.get(wait.ticket) is wait:
                answer = self._answer_gather(wait) if wait.is_gather else self._answer_receive(wait)
                if answer is not None:
                    del captured.waits[wait.ticket]
                    self._replies.append(Reply(wait.rank, answer))
                    if wait.is_gather:
                        self._retry(self._blocked.pop((_FOLLOWERS, wait.entry, wait.call.seq), ()))

    def _answer_gather(self, wait: _Wait) -> Answer | None:
        group_sources, key = self._sources_of(wait.entry), (wait.entry, wait.call.seq)
        if not group_sources.has_stand_ins:
            # All members run and get the same answer: one that waits, the leader, collects it for all.
            if key in self._complete:
                return GatherAnswered(wait.ticket, self._complete[key], group_sources.packed)
            leader = self._leaders.setdefault(key, wait)
            if leader is not wait and self._captured[leader.rank].waits.get(leader.ticket) is leader:
                self._blocked.setdefault((_FOLLOWERS, *key), []).append(wait)
                return None
            self._leaders[key] = wait
        if wait.group_sources is not group_sources:
            wait.group_sources, wait.table = group_sources, []
        for source in group_sources.sources[len(wait.table) :]:
            posting = self._posting(wait, source)
            if posting is None:
                return None
            if isinstance(posting, str):
                return StopOrdered(wait.ticket, posting)
            wait.table.append(posting[0])
        table = tuple(wait.table)
        if not group_sources.has_stand_ins:
            self._complete[key] = table
        elif self._captured[wait.rank].is_primary:
            self._given.append(_GivenAnswer(wait, group_sources, table))
        return GatherAnswered(wait.ticket, table, group_sources.packed)

    def _posting(self, wait: _Wait, source: Source) -> tuple[Payload] | str | None:
        """Return what `source` put in; None if that has yet to come; a reason to stop if it never will."""
        if source.rank == wait.rank or not (source.is_member or self._captured[wait.rank].heeds_stand_ins):
            return (wait.payload,)
        captured = self._captured[source.rank]
        place = self._registry.place(source.rank, wait.entry) if source.is_member else source.place
        if place == AS_CALLER:
            place = wait.call.group
        posted = None if place is None else captured.posts.get((place, wait.call.seq))
        if posted is not None:
            is_fit = source.is_member or agrees(posted[1], wait.call)
            return (posted[0] if is_fit else wait.payload,)
        if not source.is_member and captured.ended is not None:
            return (wait.payload,)
        key = (source.rank,) if place is None else (source.rank, place, wait.call.seq)
        return self._missing(wait, captured, key)

    def _answer_receive(self, wait: _Wait) -> Answer | None:
        call, peer = wait.call, wait.call.peer
        speaker, key = self._sender(wait)
        if speaker != peer and (key is None or not self._captured[wait.rank].heeds_stand_ins):
            return ReceiveAnswered(wait.ticket, None)
        captured = self._captured[speaker]
        sent = None if key is None else captured.sends.get(key)
        if sent is not None:
            payload, other = sent
            if speaker == peer and not agrees(_sized(other), _sized(call)):
                raise message_mismatch((peer, other), (wait.rank, call))
            return ReceiveAnswered(wait.ticket, payload)
        if speaker != peer and captured.ended is not None:
            return ReceiveAnswered(wait.ticket, None)
        reason = self._missing(wait, captured, (speaker,) if key is None else (speaker, *key))
        return None if reason is None else StopOrdered(wait.ticket, reason)

    def _sender(self, wait: _Wait) -> tuple[int, tuple[int, int, int, int] | None]:
        """Return who sends for the peer, and the key of the posting: the same offset in the stand-in's group."""
        call, entry, registry = wait.call, wait.entry, self._registry
        if call.peer in self._captured:
            place = registry.place(call.peer, entry)
            return call.peer, None if place is None else (place, wait.rank, call.tag, call.seq)
        speaker = int(self._stand_ins()[call.peer])
        here, there = registry.position(entry, wait.rank), registry.position(entry, call.peer)
        if here is None or there is None:
            return speaker, None
        place = int(registry.presumed_places(entry)[there]) if registry.is_global(entry) else call.group
        own = registry.own(speaker)
        if place >= len(own) or len(registry.members[own[place]]) != len(registry.members[entry]):
            return speaker, None
        members = registry.members[own[place]]
        position = registry.position(own[place], speaker)
        assert position is not None, "a rank is a member of every group in its own list"
        receiver = int(members[(position + here - there) % len(members)])
        return speaker, (place, receiver, call.tag, call.seq)

    def _missing(self, wait: _Wait, captured: _CapturedRank, key: tuple[int, ...]) -> str | None:
        """Block the wait until `key` is posted; return the stop reason of a rank that was stopped."""
        if captured.ended is None or captured.ended == FAILED:
            self._blocked.setdefault(key, []).append(wait)
            return None
        if captured.ended != SCRIPT_ENDED:
            return captured.ended
        raise self._stuck(
            [wait, *(other for other in self._pending() if other is not wait and self._is_in_vain(other))]
        )

    def _sources_of(self, entry: int) -> GroupSources:
        group_sources = self._sources.get(entry)
        if group_sources is None:
            group_sources = self._sources[entry] = GroupSources.of(
                self._registry, entry, is_captured=self._is_captured, stand_ins=self._stand_ins()
            )
        return group_sources

    def _is_outdated(self, given: _GivenAnswer, now: GroupSources, pairs: Ints) -> bool:
        table = [self._posted_by(given.wait, source) for source in now.sources]
        return any(table[new] is not None and table[new] != (given.table[old],) for old, new in pairs.tolist())

    def _posted_by(self, wait: _Wait, source: Source) -> tuple[Payload] | None:
        if source.rank == wait.rank:
            return (wait.payload,)
        place = self._registry.place(source.rank, wait.entry) if source.is_member else source.place
        place = wait.call.group if place == AS_CALLER else place
        posted = None if place is None else self._captured[source.rank].posts.get((place, wait.call.seq))
        return (posted[0],) if posted is not None and agrees(posted[1], wait.call) else None

    def _describe(self, wait: _Wait) -> Waiting:
        missing = self._missing_members(wait)
        return Waiting(
            rank=wait.rank,
            call=wait.call,
            group=group_name(self._registry, wait.entry),
            entry=wait.entry,
            missing=tuple(missing),
            ended=tuple(rank for rank in missing if rank in self._captured and self._captured[rank].ended is not None),
        )

    def _is_in_vain(self, wait: _Wait) -> bool:
        return any(
            rank in self._captured and self._captured[rank].ended == SCRIPT_ENDED
            for rank in self._missing_members(wait)
        )

    def _missing_members(self, wait: _Wait) -> Sequence[int]:
        if not wait.is_gather:
            return [wait.call.peer]
        direct = [source.rank for source in self._sources_of(wait.entry).sources if source.is_member]
        places = [(rank, self._registry.place(rank, wait.entry)) for rank in direct if rank != wait.rank]
        return [
            rank for rank, place in places if place is None or (place, wait.call.seq) not in self._captured[rank].posts
        ]


def _sized(call: Call) -> Call:
    """Return the call without its direction, so that a send can be compared with a receive."""
    return Call(group=0, seq=call.seq, op="", dtype=call.dtype, num_bytes=call.num_bytes)
