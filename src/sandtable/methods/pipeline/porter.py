"""Porter: a thread that does jobs in order, and never keeps a process alive.

What blocks (a message that has not come, a sum that a peer has not joined) waits here, so that the training loop can
compute meanwhile, and can give up when a peer has died. On a GPU a job sees what the asking thread has queued so far,
and is over when the GPU has done it.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

__all__ = ["Porter"]

Result = TypeVar("Result")
Job = tuple["Future[Any]", Callable[[], Any], Any]


class Porter:
    """Does jobs one after the other in a thread of its own, which starts with the first of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], Result]) -> "Future[Result]":
        """Do the job after all earlier ones."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sandtable-porter", daemon=True)
            self._thread.start()
        ready: Any = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(self._device))
        future: Future[Result] = Future()
        self._jobs.put((future, job, ready))
        return future

    def close(self) -> None:
        """End after the jobs there are."""
        if self._thread is not None:
            self._jobs.put(None)

    def _work(self) -> None:
        if self._device.type == "cuda":
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                self._work_until_closed(stream)
        else:
            self._work_until_closed(None)

    def _work_until_closed(self, stream: Any) -> None:
        while (entry := self._jobs.get()) is not None:
            future, job, ready = entry
            future.set_running_or_notify_cancel()
            try:
                if stream is not None:
                    stream.wait_event(ready)
                result = job()
                if stream is not None:
                    stream.synchronize()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del entry, future, job, ready
