"""Workers: processes that rehearse configurations one after another, each with a launcher of its own.

    with Workers(2) as workers:
        for task, outcome in workers.run(tasks):
            ...

A worker keeps torch and the virtual GPU loaded, so that its second rehearsal starts in hundredths of a second. One that
dies is replaced, and what it was rehearsing is tried again once. When the block ends, however it ends, none is left.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TypeVar

from sandtable import cluster as clusters
from sandtable.errors import LaunchError, SandtableError
from sandtable.findings import Finding, Severity
from sandtable.launch import is_launch_command
from sandtable.planner.trial import Outcome, TrialFigures, TrialState
from sandtable.rehearsal.rehearsal import Rehearsal
from sandtable.rehearsal.script import LaunchOptions, rehearse, rehearse_command
from sandtable.report.summary import Summary, UserInputs
from sandtable.report.times import PARTS, Parts
from sandtable.vgpu.launcher import Launcher, use_launcher

__all__ = ["TrialTask", "Workers", "run_trial"]

Key = TypeVar("Key")

_DEATHS_PER_TASK = 2
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What a worker needs to rehearse a configuration: plain data, which can go to another process or machine.

    With `checks` the rehearsal is a full one, with all rules, and saved in `out`. With `memory_factor` cards have so
    many times their memory, which shows how much a configuration needs that does not fit.
    """

    words: tuple[str, ...]
    cluster: str
    nodes: int | None = None
    steps: int = 3
    inputs: UserInputs = field(default_factory=UserInputs)
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    checks: bool = False
    out: str | None = None
    memory_factor: float = 1.0

    @property
    def is_command(self) -> bool:
        """Whether the words are a launch command, and not a script with its arguments."""
        return not self.launch.is_module and is_launch_command(self.words[0])


class Workers:
    """A number of workers on this machine; use it as a context."""

    def __init__(self, num_workers: int) -> None:
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="sandtable worker")
        self._own = threading.local()
        self._all: list[_Worker] = []
        self._is_ending = False
        self.num_workers = num_workers

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_ending = True
        if error is not None:
            for worker in self._all:
                worker.stop()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.end()

    def run(self, tasks: Iterator[tuple[Key, TrialTask]]) -> Iterator[tuple[Key, Outcome]]:
        """Yield each key with the outcome of its task, as they end; tasks are taken when a worker is free."""
        pending: dict[Future[Outcome], Key] = {}
        while True:
            while len(pending) < self.num_workers and (item := next(tasks, None)) is not None:
                pending[self._threads.submit(self._rehearse, item[1])] = item[0]
            if not pending:
                return
            ended, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in ended:
                yield pending.pop(future), future.result()

    def _rehearse(self, task: TrialTask) -> Outcome:
        """Have this thread's worker rehearse the task."""
        for _ in range(_DEATHS_PER_TASK):
            worker: _Worker | None = getattr(self._own, "worker", None)
            if worker is None or not worker.is_alive:
                worker = self._own.worker = _Worker()
                self._all.append(worker)
            try:
                return worker.rehearse(task)
            except EOFError:
                if self._is_ending:
                    break
        reason = "the process that rehearsed it died twice; the machine may have run out of memory (use fewer --jobs)"
        return Outcome(state=TrialState.REJECTED, reason=reason)


class _Worker:
    """A process, and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, sys.path), daemon=False)
        self._process.start()
        theirs.close()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def rehearse(self, task: TrialTask) -> Outcome:
        """Return the outcome. Raises EOFError if the worker dies, and what the rehearsal raised."""
        try:
            self._pipe.send(task)
            answer = self._pipe.recv()
        except OSError as error:
            raise EOFError from error
        if isinstance(answer, SandtableError):
            raise answer
        assert isinstance(answer, Outcome)
        return answer

    def stop(self) -> None:
        """End the worker in the middle of what it does."""
        self._process.terminate()

    def end(self) -> None:
        """Let the worker end, and wait for it."""
        self._pipe.close()
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, path: Sequence[str]) -> None:
    """Rehearse what comes through the pipe until it is closed."""
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's, which then stops its workers
    signal.signal(signal.SIGTERM, _raise_exit)
    with Launcher() as launcher, use_launcher(launcher):
        while (task := _received(pipe)) is not None:
            pipe.send(_answer(lambda task=task: run_trial(task)))  # type: ignore[misc]


def _received(pipe: Connection) -> TrialTask | None:
    try:
        task = pipe.recv()
    except EOFError:
        return None
    assert isinstance(task, TrialTask)
    return task


def _answer(rehearse: Callable[[], Outcome]) -> Outcome | SandtableError:
    try:
        return rehearse()
    except SandtableError as error:
        return error


def _raise_exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def run_trial(task: TrialTask) -> Outcome:
    """Rehearse a configuration and return what came of it. A script that fails is an outcome, too."""
    start = time.perf_counter()
    try:
        outcome = _outcome(_rehearse(task))
    except LaunchError as error:  # the launcher itself refuses these numbers
        outcome = Outcome(state=TrialState.REJECTED, reason=str(error))
    return replace(outcome, seconds=time.perf_counter() - start)


def _rehearse(task: TrialTask) -> Rehearsal:
    start = partial(rehearse_command, task.words) if task.is_command else partial(rehearse, *task.words)
    is_larger = task.memory_factor != 1
    return start(
        cluster=clusters.load(task.cluster).with_memory(task.memory_factor) if is_larger else task.cluster,
        nodes=task.nodes if task.is_command else task.nodes or 1,
        steps=task.steps,
        inputs=task.inputs,
        options=task.launch if task.checks else replace(task.launch, checks=False, few_ranks=0),
        out=task.out,
    )


def _outcome(run: Rehearsal) -> Outcome:
    worst = next((finding for finding in run.findings if finding.severity is Severity.ERROR), None)
    if worst is not None:
        is_full = worst.rule == "out-of-memory"
        state = TrialState.OUT_OF_MEMORY if is_full else TrialState.REJECTED
        return Outcome(state=state, reason=_reason(worst), place=_place(worst))
    error: SandtableError | None = run.error
    if error is not None or not run.has_time:
        return Outcome(state=TrialState.REJECTED, reason=str(error or "the run has no step time"))
    return Outcome(state=TrialState.PRICED, figures=_figures(run.summary))


def _reason(finding: Finding) -> str:
    """Return what a script said when it gave up, or what the finding says."""
    if finding.evidence and finding.rule in ("script-error", "rank-raised", "out-of-memory"):
        return finding.evidence[0].text.removeprefix("raised ")
    return finding.message


def _place(finding: Finding) -> str:
    return finding.evidence[0].place if finding.evidence else ""


def _figures(summary: Summary) -> TrialFigures:
    timing = summary.require_timing()
    fullest = max(summary.memory, key=lambda rank_class: rank_class.use.peak_reserved_bytes)
    parts = timing.breakdown.mean.parts
    throughput = timing.throughput
    return TrialFigures(
        step_seconds=timing.step_seconds,
        num_gpus=summary.world_size,
        memory_bytes=fullest.use.peak_reserved_bytes,
        capacity_bytes=fullest.use.capacity_bytes,
        mfu=timing.efficiency.mfu,
        mfu_dtype=timing.efficiency.dtype,
        model_flops=timing.efficiency.model_flops,
        parts=_flat(parts),
        tokens_per_step=None if throughput is None else throughput.tokens_per_step,
        usd_per_step=timing.cost.usd_per_step,
        num_captured=len(summary.capture.captured_ranks),
    )


def _flat(parts: Parts) -> dict[str, float]:
    """Return the parts as one table; communication has one row per axis."""
    flat = {name: getattr(parts, name) for name in (*PARTS, "other") if name != "communication"}
    flat |= {f"communication {axis}": seconds for axis, seconds in parts.communication.items()}
    return {name: seconds for name, seconds in flat.items() if seconds}
