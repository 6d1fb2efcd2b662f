"""TaskThread: a thread that runs tasks in order and never keeps a process alive.

Blocking calls (a message that has not come, a sum that a peer has not joined) wait here, so that the training loop can
keep computing, and can give up when a peer has died. On a GPU a task sees what the submitting thread has queued so
far, and is done when the GPU has done it.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import torch

__all__ = ["TaskThread"]

Result = TypeVar("Result")


class _Task(NamedTuple):
    future: "Future[Any]"
    run: Callable[[], Any]
    ready: Any
    """A CUDA event after all that was queued before; None on a CPU."""


class TaskThread:
    """Runs tasks one after the other in its own thread, which starts with the first task."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, run: Callable[[], Result]) -> "Future[Result]":
        """Call `run` after all earlier tasks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sandtable-pipeline", daemon=True)
            self._thread.start()
        ready: Any = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(self._device))
        future: Future[Result] = Future()
        self._tasks.put(_Task(future, run, ready))
        return future

    def close(self) -> None:
        """End the thread after the tasks already submitted."""
        if self._thread is not None:
            self._tasks.put(None)

    def _work(self) -> None:
        if self._device.type == "cuda":
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                self._work_until_closed(stream)
        else:
            self._work_until_closed(None)

    def _work_until_closed(self, stream: Any) -> None:
        while (task := self._tasks.get()) is not None:
            task.future.set_running_or_notify_cancel()
            try:
                if stream is not None:
                    stream.wait_event(task.ready)
                result = task.run()
                if stream is not None:
                    stream.synchronize()
            except BaseException as error:
                task.future.set_exception(error)
            else:
                task.future.set_result(result)
                del result
            del task  # while the thread waits, it must not keep tensors alive
