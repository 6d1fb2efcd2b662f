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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TypeVar

from sandtable.errors import SandtableError
from sandtable.planner.trial import Outcome, TrialState, TrialTask, run_trial
from sandtable.vgpu import Launcher
from sandtable.vgpu.launcher import use_launcher

__all__ = ["Workers"]

Key = TypeVar("Key")

_DEATHS_PER_TASK = 2
_END_SECONDS = 10.0


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
