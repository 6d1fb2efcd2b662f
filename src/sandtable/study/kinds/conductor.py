"""The conductor: lets a coordinator of L-BFGS go on for an epoch at a time, and stand still in between.

An epoch is one evaluation of the loss on all images. A search along a direction may take several, and only its end is
a new iterate. So an epoch may end with nothing new: the iterate that its search ends with belongs to a later one.
"""

import queue
import threading

from sandtable.methods.distbelief import Progress

__all__ = ["Conductor"]


class Conductor:
    """`stand_still` is for the coordinator's thread, `advance` and `let_go` for another one."""

    def __init__(self) -> None:
        self._iterates: queue.Queue[tuple[int, float] | None] = queue.Queue()
        self._may_go_on = threading.Semaphore(0)
        self._ahead: tuple[int, float] | None = None
        self._has_begun = self._is_over = False
        self._loss = 0.0

    def stand_still(self, progress: Progress) -> None:
        """There is an iterate: tell of it, and wait until more are wanted."""
        self._iterates.put((progress.num_evaluations, progress.loss))
        self._may_go_on.acquire()

    def end(self) -> None:
        """There will be no more."""
        self._iterates.put(None)

    def advance(self, num_evaluations: int) -> tuple[bool, float]:
        """Go on until the loss has been evaluated so often, one more than before. Is there a new iterate, and its loss.

        Without a new one it is the loss of the last.
        """
        if self._ahead is None and not self._is_over:
            if self._has_begun:
                self._may_go_on.release()
            self._has_begun = True
            self._ahead = self._iterates.get()
            self._is_over = self._ahead is None
        if self._ahead is None or self._ahead[0] > num_evaluations:
            return False, self._loss
        self._loss, self._ahead = self._ahead[1], None
        return True, self._loss

    def let_go(self) -> None:
        """Nobody will ask for more: the coordinator need not wait again."""
        self._may_go_on.release()
