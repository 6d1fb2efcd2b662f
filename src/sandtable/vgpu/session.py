"""A session: one attempt to capture a job, from the first rank to the classes.

One thread waits for whatever comes first: a message of a rank, a line it printed, or a report of the fork server that a
rank has started or ended. The decisions are made elsewhere: the broker answers ranks, `classes.py` selects what to run
next.
"""

import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sandtable.errors import FindingError, LaunchError, MismatchError
from sandtable.events import Listener, RankCaptured, RankStarted
from sandtable.trace import RankRecords
from sandtable.vgpu.broker import Broker
from sandtable.vgpu.call_logs import P2P_MISMATCH, MeetingError
from sandtable.vgpu.classes import CapturePlan, by_digest, plan, stand_ins
from sandtable.vgpu.deadlocks import DEADLOCK_CYCLE, MISSING_PARTICIPANT
from sandtable.vgpu.failures import died, has_known_cause, is_missing_file, script_error
from sandtable.vgpu.fork_protocol import RankExited, RankForked
from sandtable.vgpu.group_order import GROUP_MISMATCH, find_group_mismatch
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.imports import ImportedModule
from sandtable.vgpu.loop_exits import StoppedRank, explain_exit
from sandtable.vgpu.memory_meter import MemoryMeter
from sandtable.vgpu.message_handler import MessageHandler
from sandtable.vgpu.mismatches import COLLECTIVE_MISMATCH
from sandtable.vgpu.named_ranks import named_ranks
from sandtable.vgpu.processes import cpu_ticks, wants_core
from sandtable.vgpu.protocol import RankFailed
from sandtable.vgpu.rank_process import RankOutcome, RankProcess
from sandtable.vgpu.settings import Job, RankTask
from sandtable.vgpu.sharded_ranks import ShardedRanks, ShardReader
from sandtable.vgpu.shared_files import SharedFiles
from sandtable.vgpu.stop import DEADLOCK, ENOUGH_STEPS, FAILED, MISMATCH, OTHER_RANK_FAILED, SCRIPT_ENDED
from sandtable.vgpu.turns import Turns

__all__ = ["RankStarter", "Session"]

_TICK_SECONDS = 0.25
_GRACE_SECONDS = 1.0
"""If all ranks wait and none uses the processor for this long, nothing will come any more."""

_LONG_GRACE_SECONDS = 20.0
"""The same where only threads other than the main one wait: that one may sleep, or wait for something else."""

_MAX_STARTING = 8
"""Ranks requested of the fork server that have not started: with more than their sockets hold, both would block."""

_WHOLE_GROUP = 32
"""A group of at most this many ranks, two of which talk point to point, is a pipeline or a ring: all of it runs."""

_FOLLOWED_SAMPLES = 8
"""So many samples are followed after the captured steps: they run one after another, so following all would add up."""

_FAILURE_SECONDS = 2.0
"""When the script has failed on a rank, how long others have to fail, to end, or to wait for it."""

_STOP_SECONDS = 1.0
_SAVE_SECONDS = 3.0
"""After a failure, how long ranks have to answer a stop, and then how long a signal."""

_OF_SURROUNDINGS = tuple(
    f"raised {name}"
    for name in (
        "FileNotFoundError",
        "FileExistsError",
        "PermissionError",
        "OSError",
        "ImportError",
        "ModuleNotFoundError",
    )
)
"""Failures that say more about this machine than about the script."""

_STOP_REASONS = {
    DEADLOCK_CYCLE: DEADLOCK,
    MISSING_PARTICIPANT: DEADLOCK,
    P2P_MISMATCH: MISMATCH,
    COLLECTIVE_MISMATCH: MISMATCH,
    GROUP_MISMATCH: MISMATCH,
}
"""By the rule of the finding; else another rank failed."""


class RankStarter(Protocol):
    """Starts and ends the processes of ranks: the fork server, or the script itself."""

    turns: Turns

    @property
    def template_process(self) -> int | None:
        """A process, forked from that of `process_id`, whose memory some ranks share."""

    @property
    def process_id(self) -> int:
        """The process whose memory ranks share."""

    @property
    def control(self) -> socket.socket | int:
        """Readable when there is an event."""

    def start(self, task: RankTask, far_ends: tuple[int, int, int]) -> None:
        """Request a rank."""

    def stop_ranks(self) -> None:
        """Signal all ranks to stop and save their records."""

    def kill_ranks(self) -> None:
        """End all ranks."""

    def event(self) -> RankForked | RankExited | None:
        """Wait for the next event; None if it does not concern a rank."""

    def share_imports(self, modules: Sequence[ImportedModule]) -> None:
        """Have ranks that follow share these imports of the first one, if that is worthwhile."""

    def check(self, *, is_quiet: bool) -> None:
        """Look after ranks that have been requested and not started; raise MismatchError if one never will.

        `is_quiet` if nothing has happened for a while.
        """


class Session:
    """Runs ranks until the work of every rank is known."""

    def __init__(self, job: Job, client: RankStarter, listen: Listener, *, task: Callable[[int], RankTask]) -> None:
        self.registry = GroupRegistry(job.world_size)
        self.broker = Broker(self.registry, self._stand_ins)
        self.meter = MemoryMeter(client.process_id)
        self.primaries: set[int] = set()
        self.late_samples: set[int] = set()
        self.outcomes: dict[int, RankOutcome] = {}
        self.unsure: tuple[tuple[int, int], ...] = ()
        self.sharded: tuple[ShardedRanks, ...] = ()
        self._job = job
        self._client = client
        client.turns.start_again()
        self._listen = listen
        self._task = task
        self._shards = ShardReader(lambda rank: RankRecords.load(task(rank).records_path))
        self._live: dict[int, RankProcess] = {}
        self._files = SharedFiles()
        self._known: set[int] = set()
        self._samples: deque[int] = deque()
        self._to_start: deque[tuple[int, bool]] = deque()
        self._num_starting = 0
        self._num_samples = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(client.control, selectors.EVENT_READ, self._on_fork_server)
        self._known_stand_ins: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None
        self._ran_again: set[int] = set()
        self._quiet_since: tuple[float, int] | None = None
        self._stop_reason: str | None = None
        self._failures: list[tuple[int, RankFailed]] = []
        self._late_failures: list[tuple[int, RankFailed]] = []
        self._failed_since = 0.0
        self._messages = MessageHandler(
            self.broker,
            self._files,
            start_everyone=self._start_everyone,
            start_node=self._start_node,
            meet=self._meet,
            share_imports=client.share_imports,
            listen=listen,
        )

    def run(self, primaries: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
        """Capture these ranks and all that follow from them; return the classes, keyed by representative."""
        for rank in sorted(primaries):
            self._enqueue(rank, is_primary=True)
        while True:
            self._run_until_idle()
            if self.registry.has_private():
                self._start_everyone(False)
            if self._to_start:
                continue
            next_plan = self._plan()
            if next_plan.is_final and self._sample_named():
                continue
            if next_plan.is_final:
                error = self._find_group_mismatch() or self.broker.find_mismatch()
                if error is not None:
                    raise error
                self.unsure, self.sharded = next_plan.unsure, next_plan.sharded
                return next_plan.classes
            self._follow(next_plan)

    def wind_down(self, error: FindingError) -> Mapping[int, tuple[int, ...]]:
        """Have ranks save what they recorded, after a failure; return the classes of those that did.

        Ranks that wait for others are answered with a stop, the others are signalled, and those that do not end within
        a few seconds are killed.
        """
        self._stop_reason = _STOP_REASONS.get(error.findings[0].rule, OTHER_RANK_FAILED)
        self._samples.clear()
        self._to_start.clear()
        self._messages.stop_all(self._stop_reason)
        for process in list(self._live.values()):
            self._on_rank(process)
        self._deliver()
        self._client.turns.add(len(self._live))
        if not self._ends_within(_STOP_SECONDS):
            self._client.stop_ranks()
            if not self._ends_within(_SAVE_SECONDS):
                self.kill_ranks()
        return by_digest({rank: f"{saved.digest} {saved.stop_reason}" for rank, saved in self.outcomes.items()})

    def kill_ranks(self, *, keeps_output: bool = False) -> None:
        """End the ranks that run, and return when they are gone; `keeps_output` to pass on what they had printed."""
        self._client.kill_ranks()
        while self._live:
            event = self._client.event()
            if isinstance(event, RankExited):
                process = self._live[event.rank]
                if keeps_output:
                    process.finish_output()
                self._release(process)

    @property
    def has_made_files(self) -> bool:
        """Whether ranks have made files after their first collective, which ranks that ran later may have found."""
        return self._files.has_made

    def forget_files(self) -> None:
        """Remove what the ranks have made, so that they can run again from the beginning."""
        self._files.forget(self._known)

    def hand_over(self) -> tuple[RankProcess, ...]:
        """Return the processes that run, which are not this session's any more."""
        processes, self._live = tuple(self._live.values()), {}
        return processes

    def close(self) -> None:
        """Release the channels and pipes of ranks that still run."""
        self._selector.close()
        self._files.remove()
        for process in self._live.values():
            if not process.is_closed:
                process.close()

    @property
    def is_followed(self) -> bool:
        """Whether all ranks of the world made all wanted steps, and were followed from there on."""
        return len(self.outcomes) == self._job.world_size and all(
            outcome.is_followed for outcome in self.outcomes.values()
        )

    def explained(self, error: FindingError) -> FindingError:
        """Return the error with what is known once all ranks have stopped: an earlier cause, or a better reason."""
        if not isinstance(error, MismatchError):
            return error
        earlier = self._find_group_mismatch()
        if earlier is not None or not isinstance(error, MeetingError):
            return earlier or error
        stopped = [
            StoppedRank(rank=rank, call=call, stack=outcome.stack, loaders=outcome.loaders)
            for rank, call in error.parties
            if (outcome := self.outcomes.get(rank)) is not None
        ]
        better = explain_exit(error.findings[0], stopped, self.broker.call_table().collectives(), error.entry)
        return error if better is None else MismatchError(better)

    def _find_group_mismatch(self) -> MismatchError | None:
        made = {rank: outcome.made_groups for rank, outcome in sorted(self.outcomes.items())}
        ended = {rank for rank, outcome in self.outcomes.items() if outcome.has_ended}
        return find_group_mismatch(made, ended=ended)

    # ---- what to run ----

    def _plan(self) -> CapturePlan:
        digests = {rank: outcome.digest for rank, outcome in self.outcomes.items()}
        if self._job.ranks != "auto":
            return CapturePlan(classes=by_digest(digests))
        return plan(
            self.registry,
            digests,
            primaries=self.primaries,
            stale=self.broker.stale() - self._ran_again,
            gpus_per_node=self._job.nproc_per_node,
            limits=self._job.limits,
            shards=self._shards if any(outcome.has_flat_buffers for outcome in self.outcomes.values()) else None,
            chunked_dims={rank: outcome.chunked_dims for rank, outcome in self.outcomes.items()},
        )

    def _sample_named(self) -> bool:
        """Sample the ranks that the script names, if they have not run; return whether there are any."""
        job = self._job
        if job.ranks != "auto" or job.is_module or job.may_run_all or not job.limits.max_samples:
            return False
        axes = [family for family in self.registry.families() if 1 < family.size < job.world_size]
        named = named_ranks(
            job.script,
            world_size=job.world_size,
            ranks_per_node=job.nproc_per_node,
            positions=[family.positions(job.world_size) for family in axes],
        )
        samples = [rank for rank in named if rank not in self._known]
        self._samples.extend(samples)
        return bool(samples)

    def _follow(self, next_plan: CapturePlan) -> None:
        for rank in next_plan.primaries:
            self._enqueue(rank, is_primary=True)
        self._files.forget(next_plan.again)
        for rank in next_plan.again:
            self._ran_again.add(rank)
            self._enqueue(rank, is_primary=True)
        self._samples.extend(next_plan.samples)

    def _stand_ins(self) -> npt.NDArray[np.int64]:
        key = len(self.primaries), len(self.registry)
        if self._known_stand_ins is None or self._known_stand_ins[0] != key:
            self._known_stand_ins = key, stand_ins(self.registry, self.primaries)
        return self._known_stand_ins[1]

    def _start_everyone(self, is_needed: bool) -> None:
        """Run all ranks: they find each other in their own ways, so none can stand in for another."""
        missing, limit = set(range(self._job.world_size)) - self._known, self._job.limits.max_primaries
        if self._job.ranks == "auto" and len(self._known | missing) <= limit:
            for rank in sorted(missing):
                self._enqueue(rank, is_primary=True)
        elif missing and is_needed:
            raise LaunchError(
                f"all ranks must run where they find each other in the job's store, but only {len(self._known)} of "
                f"{self._job.world_size} do (--ranks auto does so for up to {limit}); give --ranks all"
            )

    def _start_node(self, process: RankProcess) -> None:
        """Run all ranks on the node of this one: they wait for each other in the node's memory.

        This one waits, too, so they may look for files that it has removed already.
        """
        if self._job.ranks == "auto":
            self._files.add_removed(process.removed_files)
            self._files.restore()
            first = process.rank - process.rank % self._job.nproc_per_node
            for rank in range(first, first + self._job.nproc_per_node):
                if rank not in self._known:
                    self._enqueue(rank, is_primary=not process.is_sample)

    def _enqueue(self, rank: int, *, is_primary: bool) -> None:
        if is_primary:
            self.primaries.add(rank)
        self._known.add(rank)
        self.broker.admit(rank, is_primary=is_primary)
        self._to_start.append((rank, is_primary))

    def _start_next(self) -> None:
        """Request the next rank of the fork server."""
        rank, is_primary = self._to_start.popleft()
        is_hidden = not is_primary or rank in self._ran_again
        process = RankProcess(rank, self._listen, is_sample=not is_primary, is_hidden=is_hidden)
        self._live[rank] = process
        self._num_starting += 1
        self._client.start(self._task_of(rank, is_sample=process.is_sample), process.far_ends)
        process.close_far_ends()
        self._selector.register(process.channel, selectors.EVENT_READ, lambda: self._on_rank(process))
        for pipe in (process.out, process.err):
            self._selector.register(pipe, selectors.EVENT_READ, self._reader(process, pipe))
        self._listen(RankStarted(rank=rank, is_sample=process.is_sample))

    def _task_of(self, rank: int, *, is_sample: bool) -> RankTask:
        """Return the task of a rank that starts: primaries follow the script side by side, samples only at first."""
        task = self._task(rank)
        self._num_samples += is_sample
        if not is_sample or self._job.num_epochs or self._num_samples <= _FOLLOWED_SAMPLES:
            return task
        return replace(task, settings=replace(task.settings, follow_seconds=0.0))

    # ---- the event loop ----

    def _run_until_idle(self) -> None:
        """Handle events until no rank runs and none is to be started."""
        while self._live or self._samples or self._to_start:
            at_once = 1 if self._files.are_contended else max(2, os.cpu_count() or 1)
            while self._samples and len(self._live) + len(self._to_start) < at_once:
                self._files.restore()
                self._enqueue(self._samples.popleft(), is_primary=False)
            while self._to_start and self._num_starting < _MAX_STARTING:
                self._start_next()
            events = self._selector.select(_TICK_SECONDS)
            for key, _ in events:
                key.data()
            self._deliver()
            self._end_failures()
            self._end_late_failures()
            if events:
                self._quiet_since = None
            else:
                self._check_for_deadlock()
            self._client.check(is_quiet=not events)
            self.meter.look(self._live.values())
            self._client.turns.look(self._process_ids(), has_news=bool(events))

    def _end_failures(self) -> None:
        """Raise the first failure of the script once it is clear which ranks wait for the one that failed."""
        if not self._failures:
            return
        is_late = time.monotonic() - self._failed_since > _FAILURE_SECONDS
        if not self._live or self.broker.is_stuck() or is_late:
            failed = {rank for rank, _ in self._failures}
            waits = [wait for wait in self.broker.waiting() if failed & set(wait.missing)]
            raise script_error(*self._failures[0], waits)

    def _end_late_failures(self) -> None:
        """Raise a failure after the captured steps if its cause is known, or if others wait for the rank that failed.

        Values are stand-ins, so a failure may be the rehearsal's own: what fails on all ranks, or only where rank 0
        logs and saves, ends the following and nothing else. A failure whose cause is known does not depend on values.
        """
        if not self._late_failures or (self._live and not self.broker.is_stuck()):
            return
        known = [(rank, failed) for rank, failed in self._late_failures if has_known_cause(failed)]
        if known:
            raise script_error(*min(known))
        credible = [(rank, failed) for rank, failed in self._late_failures if _is_credible(rank, failed)]
        for rank, failed in credible:
            waits = [wait for wait in self.broker.waiting() if rank in wait.missing]
            if waits:
                raise script_error(rank, failed, waits)
        for rank, _ in self._late_failures:
            self.broker.end(rank, ENOUGH_STEPS)
        self._late_failures.clear()

    def _ends_within(self, seconds: float) -> bool:
        """Handle events until no rank runs, or none has ended for this long; return whether all have ended."""
        give_up = time.monotonic() + seconds
        while self._live and time.monotonic() < give_up:
            num_live = len(self._live)
            for key, _ in self._selector.select(max(0.0, give_up - time.monotonic())):
                key.data()
            self._deliver()
            if len(self._live) < num_live:
                give_up = time.monotonic() + seconds
        return not self._live

    def _process_ids(self) -> list[int]:
        return [process.process_id for process in self._live.values() if process.process_id is not None]

    def _reader(self, process: RankProcess, pipe: int) -> Callable[[], None]:
        def read() -> None:
            if not process.read_output(pipe):
                self._unregister(pipe)

        return read

    def _deliver(self) -> None:
        for reply in self.broker.take_replies():
            process = self._live.get(reply.rank)
            if process is not None:
                process.send(reply.answer)

    def _unregister(self, source: Any) -> None:
        if source in self._selector.get_map():
            self._selector.unregister(source)

    def _check_for_deadlock(self) -> None:
        if not self.broker.is_stuck():
            self._quiet_since = None
            return
        process_ids = self._process_ids()
        ticks = sum(map(cpu_ticks, process_ids))
        is_busy = self._quiet_since is None or ticks > self._quiet_since[1] + _GRACE_SECONDS * 10
        now = time.monotonic()
        if self._quiet_since is None or is_busy or any(map(wants_core, process_ids)):
            self._quiet_since = now, ticks
        elif now - self._quiet_since[0] >= (_LONG_GRACE_SECONDS if self.broker.is_aside() else _GRACE_SECONDS):
            self.broker.break_deadlock()
            self._deliver()

    # ---- the fork server ----

    def _on_fork_server(self) -> None:
        event = self._client.event()
        self.meter.template = self._client.template_process
        if event is None:
            return
        process = self._live[event.rank]
        if isinstance(event, RankForked):
            process.process_id = event.process
            self._num_starting -= 1
        else:
            self._on_exit(process, event.exit_code)

    def _on_exit(self, process: RankProcess, exit_code: int) -> None:
        for message in process.messages(is_last=True):
            self._messages.handle(process, message)
        process.finish_output()
        self.meter.add_up(self._live.values())
        self._release(process)
        self._files.add_removed(process.removed_files)
        if process.outcome is not None:
            self.outcomes[process.rank] = process.outcome
        if self._stop_reason is not None:
            return
        if process.failure is not None and process.outcome is not None and process.outcome.is_followed:
            self._late_failures.append((process.rank, process.failure))
            self.broker.end(process.rank, FAILED)
            return
        if process.failure is not None or process.outcome is None:
            failed = process.failure or died(exit_code, process.err_lines.kept)
            if process.is_sample and is_missing_file(failed):
                self.late_samples.add(process.rank)
            else:
                process.out_lines.reveal()
                process.err_lines.reveal()
            if process.rank in self.late_samples:
                raise script_error(process.rank, failed)
            self._samples.clear()
            self._failed_since = self._failed_since or time.monotonic()
            self._failures.append((process.rank, failed))
            self.broker.end(process.rank, FAILED)
            return
        self._listen(RankCaptured(rank=process.rank, is_sample=process.is_sample, num_steps=process.outcome.num_steps))
        has_ended = process.outcome.has_ended
        self.broker.end(process.rank, SCRIPT_ENDED if has_ended else process.outcome.stop_reason)

    def _release(self, process: RankProcess) -> None:
        for source in (process.channel, process.out, process.err):
            self._unregister(source)
        process.close()
        del self._live[process.rank]

    # ---- ranks ----

    def _on_rank(self, process: RankProcess) -> None:
        for message in process.messages():
            self._messages.handle(process, message)
        if not process.is_open and not process.is_closed:
            self._unregister(process.channel)
        self._deliver()

    def _meet(self, process: RankProcess, group: int, peer: int) -> None:
        """Run the rank that a primary talks to point to point, because it does other work."""
        if self._job.ranks != "auto" or process.is_sample:
            return
        entry = self.registry.own(process.rank)[group]
        members = self.registry.members[entry].tolist()
        is_small = len(members) <= _WHOLE_GROUP and len(members) < self._job.world_size
        for rank in [peer, *members] if is_small else [peer]:
            if rank not in self._known and len(self.primaries) < self._job.limits.max_primaries:
                self._enqueue(rank, is_primary=True)


def _is_credible(rank: int, failed: RankFailed) -> bool:
    """Return whether a failure after the captured steps is the script's own, not one of missing files or numbers."""
    return (rank != 0 or failed.is_data) and not failed.text.startswith(_OF_SURROUNDINGS)
