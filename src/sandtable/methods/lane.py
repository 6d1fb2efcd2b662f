"""Lane: the one ordered thread in which exchanges are done or waited for while the backward pass still computes.

Collectives must come in the same order on every rank. Hooks of gradients put work on the lane in an order all ranks
share; what torch can do by itself they begin in that order, and the lane waits for its end. The lane does one thing
after the other. Without overlap there is no thread: work is done at once, by whoever asks.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

__all__ = ["Lane"]


class Lane:
    """Does jobs in order. `waited_s` is how long the training loop stood still for them."""

    def __init__(self, *, threaded: bool) -> None:
        self.waited_s = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sandtable-lane") if threaded else None
        self._pending: list[Future[None]] = []

    def submit(self, job: Callable[[], None]) -> None:
        """Do the job after all earlier ones; `wait` says when."""
        if self._pool is None:
            start = time.perf_counter()
            job()
            self.waited_s += time.perf_counter() - start
        else:
            self._pending.append(self._pool.submit(_on_stream_of_now(job)))

    def wait(self) -> None:
        """Until everything submitted is done; an error of a job is raised here."""
        start = time.perf_counter()
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()
        self.waited_s += time.perf_counter() - start

    def run(self, job: Callable[[], None]) -> None:
        """Do the job after all earlier ones, and wait for it."""
        self.submit(job)
        self.wait()


def _on_stream_of_now(job: Callable[[], None]) -> Callable[[], None]:
    """On a GPU, the job sees what the asking thread has queued so far, and is over when the GPU has done it."""
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
