"""Let the coordinator of L-BFGS run one epoch at a time, and pause it in between.

An epoch is one evaluation of the loss on all images. A line search may take several, and only its end is a new iterate.
So an epoch may end without one: the iterate at which its search ends belongs to a later epoch.
"""

import queue
import threading

from sandtable.methods.server import Progress

__all__ = ["EpochGate"]


class EpochGate:
    """The coordinator's thread calls `wait` and `close`; another thread calls `advance` and `release`."""

    def __init__(self) -> None:
        self._iterates: queue.Queue[tuple[int, float] | None] = queue.Queue()
        self._permits = threading.Semaphore(0)
        self._next: tuple[int, float] | None = None
        self._has_begun = self._is_over = False
        self._loss = 0.0

    def wait(self, progress: Progress) -> None:
        """Report a new iterate, and wait until the next one is wanted."""
        self._iterates.put((progress.num_evaluations, progress.loss))
        self._permits.acquire()

    def close(self) -> None:
        """Report that no iterate follows."""
        self._iterates.put(None)

    def advance(self, num_evaluations: int) -> tuple[bool, float]:
        """Let the coordinator run until the loss has been evaluated this often, one more than before.

        Returns whether there is a new iterate, and the loss of the latest.
        """
        if self._next is None and not self._is_over:
            if self._has_begun:
                self._permits.release()
            self._has_begun = True
            self._next = self._iterates.get()
            self._is_over = self._next is None
        if self._next is None or self._next[0] > num_evaluations:
            return False, self._loss
        self._loss, self._next = self._next[1], None
        return True, self._loss

    def release(self) -> None:
        """Let the coordinator run to its end: no more iterates are needed."""
        self._permits.release()
