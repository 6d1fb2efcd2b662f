"""The communication queue: one ordered thread that does or awaits exchanges while the backward pass still computes.

Collectives must come in the same order on every rank. Gradient hooks submit work in an order that all ranks share; what
torch can do alone they start in that order, and the queue waits for its end. The queue runs one job at a time.
Without overlap there is no thread: jobs run at once, in the calling thread.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

__all__ = ["CommunicationQueue"]


class CommunicationQueue:
    """Runs jobs in order. `waited_s` counts how long the training loop waited for them."""

    def __init__(self, *, threaded: bool) -> None:
        self.waited_s = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sandtable-queue") if threaded else None
        self._pending: list[Future[None]] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Run the job after all earlier ones, and before `wait` returns."""
        if self._pool is None:
            start = time.perf_counter()
            job()
            self.waited_s += time.perf_counter() - start
        else:
            self._pending.append(self._pool.submit(_on_own_stream(job)))

    def wait(self) -> None:
        """Wait until everything submitted is done; raise the error of a failed job."""
        start = time.perf_counter()
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()
        self.waited_s += time.perf_counter() - start

    def run(self, job: Callable[[], None]) -> None:
        """Run the job after all earlier ones, and wait for it."""
        self.submit(job)
        self.wait()


def _on_own_stream(job: Callable[[], None]) -> Callable[[], None]:
    """Wrap a GPU job: it sees what the submitting thread has queued so far, and ends when the GPU has done it."""
    if not torch.cuda.is_available():
        return job
    device = torch.cuda.current_device()
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()

    def on_stream() -> None:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device), torch.cuda.stream(stream):
            ready.wait()
            job()
            torch.cuda.current_stream().synchronize()

    return on_stream
