"""Ranks that the script starts itself, seen from the launcher.

The script runs once per node, as its *parent process*, and starts processes that offer themselves as ranks (see
`child_processes.py`). A session requests ranks here as it would of the fork server. A process that has offered itself
makes a copy of itself for each request, so that a rank can run again, and waits until the launch is over. A script may
launch processes several times, one launch after another.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sandtable.errors import LaunchError, MismatchError
from sandtable.events import Listener
from sandtable.findings import Evidence, Finding, Severity
from sandtable.vgpu.fork_client import ForkClient
from sandtable.vgpu.fork_protocol import (
    MAX_MESSAGE_BYTES,
    CommandStarted,
    RankExited,
    RankForked,
    RankOffered,
    ReleaseProcess,
    ScriptRelaunched,
    StartRank,
    decode,
    encode,
)
from sandtable.vgpu.imports import ImportedModule
from sandtable.vgpu.parent_processes import ParentProcesses
from sandtable.vgpu.rank_process import RankProcess
from sandtable.vgpu.settings import Job, RankTask

__all__ = ["RanksLaunched", "ScriptLaunched", "SpawnedRanks"]

_TICK_SECONDS = 0.25
_MISSING_SECONDS = 10.0
"""A requested rank whose process has not been started while its parent was idle for this long never comes."""

_IDLE_END_SECONDS = 2.0
"""A parent that is idle for this long after its ranks have ended waits for what a released process has not done."""

_BACKLOG = 4096


class RanksLaunched(Exception):
    """The script has launched ranks, `num_processes` per node; `parents` are the processes that run it."""

    def __init__(self, num_processes: int) -> None:
        super().__init__(num_processes)
        self.num_processes = num_processes
        self.parents: tuple[RankProcess, ...] = ()


class ScriptLaunched(Exception):
    """The script has started itself again as the other ranks of its node, or a launch command."""

    def __init__(self, report: ScriptRelaunched | CommandStarted) -> None:
        super().__init__(report)
        self.report = report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    """A rank that the session wants, and its ends of channel and pipes."""

    task: RankTask
    far_ends: tuple[int, ...]
    since: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Offer:
    """A process that waits to become a rank, or to make copies of itself that do."""

    message: RankOffered
    connection: socket.socket

    @property
    def is_parent(self) -> bool:
        """Whether the process has started the others; it cannot make a copy, because they would not be its children."""
        return self.message.index < 0


class SpawnedRanks:
    """Starts ranks in the processes of a script; before the script launches any, the script itself is the only one."""

    def __init__(self, job: Job, client: ForkClient, listen: Listener) -> None:
        self.address = f"\0sandtable-{secrets.token_hex(16)}"
        self.turns = client.turns
        self._client = client
        self._num_nodes = job.num_nodes
        self._parent_task: Callable[[int], RankTask]
        self._job: Job | None = None
        """What the current launch amounts to; None while there is none."""
        self._launch = 0
        self._requests: dict[int, _Request] = {}
        self._offers: dict[int, _Offer] = {}
        self._early: list[_Offer] = []
        self._starting: set[int] = set()
        self._running: dict[int, int] = {}
        """The file descriptor of each rank's process."""
        self._num_joined: Counter[int] = Counter()
        self._is_ending = False
        self._idle_since = time.monotonic()
        self._events: deque[RankForked | RankExited] = deque()
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen(_BACKLOG)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_connection)
        self._selector.register(client.control, selectors.EVENT_READ, self._on_fork_server)
        self._selector.register(self._alarm, selectors.EVENT_READ, lambda: None)
        self._parents = ParentProcesses(client, listen, self._selector)

    def run_parents_by(self, parent_task: Callable[[int], RankTask]) -> None:
        """Set the task of each node's parent process."""
        self._parent_task = parent_task

    # ---- what a session asks of its rank starter ----

    @property
    def template_process(self) -> int | None:
        """None: ranks are not forked from a template."""
        return None

    @property
    def process_id(self) -> int:
        """The fork server's process."""
        return self._client.process_id

    @property
    def control(self) -> int:
        """Readable when there is an event."""
        return self._selector.fileno()

    def start(self, task: RankTask, far_ends: tuple[int, int, int]) -> None:
        """Request a rank; before a launch, run the script itself."""
        if self._job is None:
            self._client.start(task, far_ends)
            return
        rank, node = task.settings.rank, task.settings.group_rank
        self._requests[rank] = _Request(task=task, far_ends=tuple(map(os.dup, far_ends)), since=time.monotonic())
        if rank in self._offers:
            self._begin_rank(rank)
        elif node not in self._parents:
            self._parents.start(node, self._parent_task(node))

    def stop_ranks(self) -> None:
        """Signal all ranks to stop and save their records."""
        self._is_ending = True
        if self._job is None:
            self._client.stop_ranks()
        self._drop_requests()
        self._signal_ranks(signal.SIGTERM)

    def kill_ranks(self) -> None:
        """End all ranks."""
        if self._job is None:
            self._client.kill_ranks()
            return
        self._drop_requests()
        while self._starting:
            self._dispatch(None)
        if any(offer.is_parent for offer in self._offers.values()):
            self._end_parents()
        self._signal_ranks(signal.SIGKILL)

    def event(self) -> RankForked | RankExited | None:
        """Wait for the next event; None if it does not concern a rank.

        Raises RanksLaunched or ScriptLaunched, ScriptError if a parent fails, and MismatchError if processes and ranks
        do not agree.
        """
        if not self._events:
            self._dispatch(None)
        if not self._events:
            return None
        event = self._events.popleft()
        if not self._events:
            os.eventfd_read(self._alarm)
        return event

    def share_imports(self, modules: Sequence[ImportedModule]) -> None:
        """Do nothing: a rank is forked from a process of the script, and has its imports."""

    def check(self, *, is_quiet: bool) -> None:
        """Raise MismatchError if a requested rank will never start."""
        if not is_quiet:
            return
        if not self._requests or self._parents.are_busy:
            self._idle_since = time.monotonic()
            return
        request = self._requests[min(self._requests)]
        if time.monotonic() - max(self._idle_since, request.since) < _MISSING_SECONDS:
            return
        settings = request.task.settings
        raise _mismatch(
            "missing-rank",
            f"every rank must have a process, but the script started {self._num_joined[settings.group_rank]} of the "
            f"{settings.local_world_size} on node {settings.group_rank} (a world of {settings.world_size} on "
            f"{self._num_nodes} nodes) and waits",
            rank=settings.rank,
            offers=self._offers.values(),
            remedy="start a process for each rank of the node, and give the number of nodes with --nnodes",
        )

    # ---- launches ----

    def adopt(self, parents: Iterable[RankProcess]) -> None:
        """Take over the parent processes from the session that started them."""
        self._parents.adopt(parents)

    def begin(self, job: Job) -> None:
        """Serve the requests of a session for this launch."""
        self._job = job
        self._launch += 1
        self._num_joined.clear()
        early, self._early = self._early, []
        for offer in early:
            self._take(offer)

    def next_launch(self) -> int | None:
        """Release the processes of this launch, and return how many the next one has per node; None if there is none.

        Raises ScriptError if the script fails after its ranks have ended.
        """
        self._job = None
        for offer in self._offers.values():
            with suppress(BrokenPipeError, ConnectionResetError):
                offer.connection.send(encode(ReleaseProcess()))
        self._drop_offers()
        idle_since = time.monotonic()
        try:
            for offer in self._early:
                self._announce(offer.message)
            while self._parents and time.monotonic() - idle_since < _IDLE_END_SECONDS:
                if self._dispatch(_TICK_SECONDS) or self._parents.are_busy:
                    idle_since = time.monotonic()
        except RanksLaunched as launched:
            return launched.num_processes
        return None

    def close(self) -> None:
        """End what still runs."""
        self._end_parents()
        _close(self._running.values())
        self._selector.close()
        self._listener.close()
        os.close(self._alarm)

    def _end_parents(self) -> None:
        """End the script on all nodes, and with it all that it has started."""
        self._is_ending = True
        self._client.kill_ranks()
        while self._parents:
            self._dispatch(None)
        self._drop_offers()
        self._is_ending = False

    # ---- offers ----

    def _on_connection(self) -> None:
        connection, _ = self._listener.accept()
        packet = connection.recv(MAX_MESSAGE_BYTES)
        message = decode(packet) if packet else None
        if isinstance(message, ScriptRelaunched | CommandStarted):
            connection.close()
            raise ScriptLaunched(message)
        if not isinstance(message, RankOffered) or message.launch < self._launch:
            connection.close()  # an earlier launch, in a parent that was started later
            return
        offer = _Offer(message=message, connection=connection)
        if self._job is not None and message.launch == self._launch:
            self._take(offer)
            return
        self._early.append(offer)
        if self._job is None:
            self._announce(message)

    def _announce(self, offer: RankOffered) -> None:
        """Raise RanksLaunched, with the number of processes that the script starts on each node."""
        if offer.num_processes > 0:
            raise RanksLaunched(offer.num_processes)
        if offer.world_size % self._num_nodes:
            raise LaunchError(
                f"the number of nodes ({self._num_nodes}) must divide the world size of init_process_group "
                f"({offer.world_size}); give the number of nodes with --nnodes"
            )
        raise RanksLaunched(offer.world_size // self._num_nodes)

    def _take(self, offer: _Offer) -> None:
        """Keep an offer of the current launch; begin the rank if it is requested."""
        assert self._job is not None, "a launch has begun"
        message, per_node = offer.message, self._job.nproc_per_node
        first = message.node * per_node
        rank = first + message.index if message.rank < 0 else message.rank
        if not first <= rank < first + per_node or rank in self._offers:
            raise _mismatch(
                "wrong-rank",
                f"every process must have a rank of its own, from {first} to {first + per_node - 1} on node "
                f"{message.node}, but one joins as rank {rank} of {message.world_size}",
                rank=rank,
                offers=[offer],
                remedy="give each process its own number, and take that of the node from NODE_RANK",
            )
        self._offers[rank] = offer
        self._num_joined[message.node] += 1
        self._selector.register(offer.connection, selectors.EVENT_READ, lambda: self._on_offer(rank, offer))
        if rank in self._requests:
            self._begin_rank(rank)

    def _begin_rank(self, rank: int) -> None:
        offer, request = self._offers[rank], self._requests.pop(rank)
        if offer.is_parent and offer.message.process in self._parents.ranks:
            raise LaunchError(
                f"rank {rank} must run again, but it is the script's own process, which started the others; give "
                "--ranks all"
            )
        self._starting.add(rank)
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(offer.connection, [encode(StartRank(task=request.task))], request.far_ends)
        _close(request.far_ends)
        if offer.is_parent:
            self._parents.ranks.add(offer.message.process)
            self._on_rank_forked(rank, offer.message.process)

    def _on_offer(self, rank: int, offer: _Offer) -> None:
        """Take what a process that offered itself says: it has made a copy, or its rank has ended, or it has."""
        packet = offer.connection.recv(MAX_MESSAGE_BYTES)
        message = decode(packet) if packet else None
        if isinstance(message, RankForked):
            self._on_rank_forked(rank, message.process)
            return
        self._selector.unregister(offer.connection)
        if rank in self._starting:
            self._on_rank_forked(rank, offer.message.process)
        if offer.is_parent:
            self._on_rank_exit(rank)
        elif not packet:
            offer.connection.close()
            del self._offers[rank]

    def _on_rank_forked(self, rank: int, process: int) -> None:
        self._starting.discard(rank)
        self._emit(RankForked(rank=rank, process=process))
        try:
            self._running[rank] = os.pidfd_open(process)
        except ProcessLookupError:
            self._emit(RankExited(rank=rank, exit_code=1))
            return
        self._selector.register(self._running[rank], selectors.EVENT_READ, lambda: self._on_rank_exit(rank))

    def _on_rank_exit(self, rank: int) -> None:
        process = self._running.pop(rank, None)
        if process is not None:
            self._selector.unregister(process)
            os.close(process)
            self._emit(RankExited(rank=rank, exit_code=1))

    def _signal_ranks(self, number: int) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)

    def _drop_requests(self) -> None:
        for rank, request in self._requests.items():
            _close(request.far_ends)
            self._emit(RankForked(rank=rank, process=self.process_id))
            self._emit(RankExited(rank=rank, exit_code=1))
        self._requests.clear()

    def _drop_offers(self) -> None:
        registered = self._selector.get_map()
        for offer in self._offers.values():
            if offer.connection in registered:
                self._selector.unregister(offer.connection)
            offer.connection.close()
        self._offers.clear()
        self._num_joined.clear()

    # ---- events ----

    def _on_fork_server(self) -> None:
        event = self._client.event()
        if event is None:
            return
        if event.rank in self._parents:
            self._parents.on_event(event, is_ending=self._is_ending)
        else:
            self._emit(event)

    def _dispatch(self, seconds: float | None) -> bool:
        """Handle what has come, waiting for it for this long; return whether anything has."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        return bool(ready)

    def _emit(self, event: RankForked | RankExited) -> None:
        if not self._events:
            os.eventfd_write(self._alarm, 1)
        self._events.append(event)


def _mismatch(rule: str, message: str, *, rank: int, offers: Iterable[_Offer], remedy: str) -> MismatchError:
    """Return an error whose evidence is where the script started the processes of these offers."""
    places = sorted({(offer.message.file, offer.message.line) for offer in offers if offer.message.file})
    evidence = tuple(Evidence(ranks=(rank,), text="started", file=file, line=line) for file, line in places)
    finding = Finding(
        rule=rule, severity=Severity.ERROR, message=message, ranks=(rank,), evidence=evidence, remedy=remedy
    )
    return MismatchError(finding)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
