"""A session: one attempt to capture a job, from the first rank to the classes.

One thread waits for whatever comes first: a message of a rank, a line it printed, or word from the zygote that a rank
has started or ended. Everything that needs thought is elsewhere: the broker answers ranks, `classes.py` says what to
run next.
"""

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.errors import LaunchError, ScriptError
from sandtable.vgpu.broker import Broker
from sandtable.vgpu.child import Child, Outcome
from sandtable.vgpu.classes import Plan, by_digest, plan, stand_ins
from sandtable.vgpu.exchange import Call
from sandtable.vgpu.group_book import Chunk, GroupBook
from sandtable.vgpu.job_store import Shelf
from sandtable.vgpu.meter import Meter
from sandtable.vgpu.nursery import Nursery
from sandtable.vgpu.output import View
from sandtable.vgpu.processes import cpu_ticks, wants_core
from sandtable.vgpu.rank import Task
from sandtable.vgpu.settings import Job

__all__ = ["Session"]

_TICK_SECONDS = 0.25
_GRACE_SECONDS = 1.0
"""All ranks wait and none uses the processor for so long: nothing will come any more."""

_LONG_GRACE_SECONDS = 20.0
"""The same where only other threads than the main one wait: that one may sleep, or wait for something else."""

_BIRTHS_AT_ONCE = 8
"""Ranks asked of the zygote and not yet there: more of them than their sockets hold would have both wait for ever."""

_WHOLE_GROUP = 32
"""A group of at most so many ranks, two of which talk point to point, is a pipeline or a ring: all of it is run."""


class Session:
    """Runs ranks until it is known what every rank does."""

    def __init__(self, job: Job, nursery: Nursery, view: View, *, task: Callable[[int], Task]) -> None:
        self.book = GroupBook(job.world_size)
        self.broker = Broker(self.book, self._stand_ins)
        self.meter = Meter(nursery.process)
        self.primaries: set[int] = set()
        self.outcomes: dict[int, Outcome] = {}
        self._job = job
        self._nursery = nursery
        nursery.turns.start_again()
        self._view = view
        self._task = task
        self._live: dict[int, Child] = {}
        self._known: set[int] = set()
        self._samples: deque[int] = deque()
        self._unborn: deque[tuple[int, bool]] = deque()
        self._num_births = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(nursery.control, selectors.EVENT_READ, self._hear_zygote)
        self._known_stand_ins: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None
        self._ran_again: set[int] = set()
        self.unsure: tuple[tuple[int, int], ...] = ()
        self._quiet_since: tuple[float, int] | None = None
        self._shelf = Shelf()
        self._ports: dict[int, int] = {}

    def run(self, primaries: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
        """Captures these ranks and all that follow from them; the classes found, by representative."""
        try:
            for rank in sorted(primaries):
                self._start(rank, is_primary=True)
            while True:
                self._run_to_the_end()
                if self.book.has_private():
                    self._call_everyone(is_needed=False)
                if self._unborn:
                    continue
                found = self._plan()
                if found.is_final:
                    error = self.broker.find_mismatch()
                    if error is not None:
                        raise error
                    self.unsure = found.unsure
                    return found.classes
                self._follow(found)
        finally:
            self._selector.close()

    def abandon(self) -> None:
        """Ends the ranks that run, so that another session can begin."""
        self._nursery.kill_ranks()
        waiting = set(self._live)
        while waiting:
            kind, rank, _, _ = self._nursery.event()
            if kind == "ended":
                waiting.discard(rank)

    def release(self) -> None:
        """Lets go of the channels and pipes of ranks that still run."""
        for child in self._live.values():
            if not child.is_closed:
                child.close()

    def _plan(self) -> Plan:
        digests = {rank: outcome.digest for rank, outcome in self.outcomes.items()}
        if self._job.ranks != "auto":
            return Plan(classes=by_digest(digests))
        return plan(
            self.book,
            digests,
            primaries=self.primaries,
            stale=self.broker.stale() - self._ran_again,
            gpus_per_node=self._job.nproc_per_node,
            limits=self._job.limits,
        )

    def _follow(self, found: Plan) -> None:
        for rank in found.primaries:
            self._start(rank, is_primary=True)
        for rank in found.again:
            self._ran_again.add(rank)
            self._start(rank, is_primary=True)
        self._samples.extend(found.samples)

    def _stand_ins(self) -> npt.NDArray[np.int64]:
        key = len(self.primaries), len(self.book)
        if self._known_stand_ins is None or self._known_stand_ins[0] != key:
            self._known_stand_ins = key, stand_ins(self.book, self.primaries)
        return self._known_stand_ins[1]

    def _start(self, rank: int, *, is_primary: bool) -> None:
        if is_primary:
            self.primaries.add(rank)
        self._known.add(rank)
        self.broker.admit(rank, is_primary=is_primary)
        self._unborn.append((rank, is_primary))

    def _give_birth(self) -> None:
        """Asks the zygote for the next rank."""
        rank, is_primary = self._unborn.popleft()
        is_hidden = not is_primary or rank in self._ran_again
        child = Child(rank, self._view, is_sample=not is_primary, is_hidden=is_hidden)
        self._live[rank] = child
        self._num_births += 1
        self._nursery.start(self._task(rank), **child.far_ends)
        child.close_far_ends()
        self._selector.register(child.channel, selectors.EVENT_READ, lambda: self._hear_rank(child))
        for pipe in (child.out, child.err):
            self._selector.register(pipe, selectors.EVENT_READ, self._reader(child, pipe))
        self._view.rank_started(rank, is_sample=child.is_sample)

    def _run_to_the_end(self) -> None:
        """Handles events until no rank runs and none is to be started."""
        at_once = max(2, os.cpu_count() or 1)
        while self._live or self._samples or self._unborn:
            while self._samples and len(self._live) + len(self._unborn) < at_once:
                self._start(self._samples.popleft(), is_primary=False)
            while self._unborn and self._num_births < _BIRTHS_AT_ONCE:
                self._give_birth()
            events = self._selector.select(_TICK_SECONDS)
            for key, _ in events:
                key.data()
            self._deliver()
            if events:
                self._quiet_since = None
            else:
                self._check_for_deadlock()
            self.meter.look(self._live.values())
            self._nursery.turns.look(self._live.values())

    def _reader(self, child: Child, pipe: int) -> Callable[[], None]:
        def read() -> None:
            if not child.read_output(pipe):
                self._forget(pipe)

        return read

    def _deliver(self) -> None:
        for reply in self.broker.take_replies():
            child = self._live.get(reply.rank)
            if child is not None:
                child.send(reply.message)

    def _hear_rank(self, child: Child) -> None:
        for message in child.messages():
            self._handle(child, message)
        if not child.is_open and not child.is_closed:
            self._forget(child.channel)
        self._deliver()

    def _handle(self, child: Child, message: tuple[Any, ...]) -> None:
        rank, broker = child.rank, self.broker
        match message:
            case ("gather", ticket, call, payload):
                broker.gather(rank, ticket, Call.of_tuple(call), payload)
            case ("receive", ticket, call):
                broker.receive(rank, ticket, Call.of_tuple(call))
            case ("aside", ticket):
                broker.note_aside(rank, ticket)
            case ("send", call, payload):
                broker.send(rank, Call.of_tuple(call), payload)
            case ("notes", texts, rows):
                broker.log(rank, texts, rows)
            case ("groups", names, sizes, ranks):
                broker.announce(rank, Chunk(names, sizes, ranks))
            case ("store", ticket, *request):
                self._call_everyone(is_needed=True)
                child.send((ticket, "store", self._shelf.answer(*request)))
            case ("own port", ticket, port):
                self._call_everyone(is_needed=False)
                self._ports[port] = rank
                child.send((ticket, "own port"))
            case ("rank at", ticket, port):
                child.send((ticket, "rank at", self._ports.get(port)))
            case ("peer", group, peer):
                self._meet(child, group, peer)
            case ("done", reason, digest, num_steps, size):
                child.outcome = Outcome(stop_reason=reason, digest=digest, num_steps=num_steps)
                child.private_bytes = size
                self.meter.add_up(self._live.values())
            case ("failed", code, text):
                child.failure = code, text

    def _meet(self, child: Child, group: int, peer: int) -> None:
        """A primary talks to a rank point to point: that one does other work, and is run as well."""
        if self._job.ranks != "auto" or child.is_sample:
            return
        entry = self.book.own(child.rank)[group]
        members = self.book.members[entry].tolist()
        is_small = len(members) <= _WHOLE_GROUP and len(members) < self._job.world_size
        for rank in [peer, *members] if is_small else [peer]:
            if rank not in self._known and len(self.primaries) < self._job.limits.max_primaries:
                self._start(rank, is_primary=True)

    def _call_everyone(self, *, is_needed: bool) -> None:
        """Ranks find each other in ways of their own: nobody can speak for another."""
        missing, limit = set(range(self._job.world_size)) - self._known, self._job.limits.max_primaries
        if self._job.ranks == "auto" and len(self._known | missing) <= limit:
            for rank in sorted(missing):
                self._start(rank, is_primary=True)
        elif missing and is_needed:
            raise LaunchError(
                f"all ranks must run where they find each other in the job's store, but only {len(self._known)} of "
                f"{self._job.world_size} do (by itself that is done for up to {limit}); give --ranks all"
            )

    def _hear_zygote(self) -> None:
        kind, rank, process, code = self._nursery.event()
        child = self._live[rank]
        if kind == "started":
            child.process = process
            self._num_births -= 1
        else:
            self._end(child, code)

    def _end(self, child: Child, code: int) -> None:
        for message in child.last_messages():
            self._handle(child, message)
        child.finish_output()
        for source in (child.channel, child.out, child.err):
            self._forget(source)
        child.close()
        del self._live[child.rank]
        if child.outcome is None:
            child.out_lines.reveal()
            child.err_lines.reveal()
            exit_code, text = child.failure or _died(child, code)
            raise ScriptError(child.rank, text, exit_code)
        self.outcomes[child.rank] = child.outcome
        self._view.rank_ended(child.rank, is_sample=child.is_sample)
        self.broker.end(child.rank, child.outcome.stop_reason)

    def _forget(self, source: Any) -> None:
        if source in self._selector.get_map():
            self._selector.unregister(source)

    def _check_for_deadlock(self) -> None:
        if not self.broker.is_stuck():
            self._quiet_since = None
            return
        processes = [child.process for child in self._live.values() if child.process is not None]
        ticks = sum(map(cpu_ticks, processes))
        is_busy = self._quiet_since is None or ticks > self._quiet_since[1] + _GRACE_SECONDS * 10
        now = time.monotonic()
        if self._quiet_since is None or is_busy or any(map(wants_core, processes)):
            self._quiet_since = now, ticks
        elif now - self._quiet_since[0] >= (_LONG_GRACE_SECONDS if self.broker.is_aside() else _GRACE_SECONDS):
            self.broker.break_deadlock()
            self._deliver()


def _died(child: Child, code: int) -> tuple[int, str]:
    """What to say of a process that left without a word."""
    if code < 0:
        how = f"was ended by signal {-code} ({signal.Signals(-code).name})"
    else:
        how = f"left with os._exit({code}) or the like"
    last = "\n".join(child.err_lines.kept)
    return code if code > 0 else 1, f"{last}\na rank must end by returning from its script, but its process {how}"
