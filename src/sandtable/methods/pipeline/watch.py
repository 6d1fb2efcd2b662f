"""Watch: every rank has an eye on every other, so that a peer that dies is named at once and by all.

Each pair of ranks has a connection on which nothing is said until the end; a thread a peer waits there. A process that
dies closes its connections, and the thread knows. A rank that ends well says so first; one that gives up because a
peer is silent says which, so that the others name that one too, and not the messenger.

It is a gloo group also where tensors travel by NCCL: a thread that waits there costs nothing.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.errors import MethodError

__all__ = ["Watch"]

Result = TypeVar("Result")

_ENDED_WELL = -1
_LAST_WORDS_S = 2.0
"""How long a rank that gives up tries to say why, and how long one whose connection broke waits to learn why."""


class Watch:
    """`wait` for what a peer must send; whoever is missed is in the error."""

    def __init__(self, group: dist.ProcessGroup, *, name: Callable[[int], str], timeout_s: float) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._name = name
        self._timeout_s = timeout_s
        self._alarm: Future[str] = Future()
        self._lock = threading.Lock()
        self.waited_s = 0.0
        """Seconds spent in `wait`."""
        self._eyes: list[threading.Thread] = []
        for peer in range(dist.get_world_size(group)):
            if peer != self._rank:
                eye = threading.Thread(target=self._look, args=[peer], name="sandtable-watch", daemon=True)
                eye.start()
                self._eyes.append(eye)

    def wait(self, future: "Future[Result]", *, what: str, suspects: Sequence[int] = ()) -> Result:
        """The result of the future; an error if a peer is gone, or if it takes longer than the timeout.

        `suspects` are those on whom it depends.
        """
        if not future.done():
            either: list[Future[Any]] = [future, self._alarm]
            start = time.perf_counter()
            wait(either, timeout=self._timeout_s, return_when=FIRST_COMPLETED)
            self.waited_s += time.perf_counter() - start
        if future.done() and future.exception() is None:
            return future.result()
        if not future.done() and not self._alarm.done():
            self._give_up(suspects, what)
        self.explain(future.exception() if future.done() else None, what=what, suspects=suspects)
        return future.result()

    def explain(self, error: BaseException | None, *, what: str, suspects: Sequence[int] = ()) -> None:
        """Raise an error that names whoever is gone or silent; return if the error has nothing to do with peers."""
        if error is not None and not _is_of_connection(error):
            return
        wait([self._alarm], timeout=_LAST_WORDS_S)
        if self._alarm.done():
            raise MethodError(
                f"all ranks of a pipeline must stay until its end, but {self._alarm.result()}, while "
                f"{self._name(self._rank)} waited for {what}; start all ranks again, from the last checkpoint"
            ) from error
        if error is not None and "imed out" in str(error):
            self._give_up(suspects, what)
        if suspects:
            who = " or ".join(map(self._name, suspects))
            raise MethodError(
                f"all ranks of a pipeline must stay connected until its end, but {who} is not, while "
                f"{self._name(self._rank)} waited for {what}; look at its own error"
            ) from error

    def close(self) -> None:
        """Say that this rank ends well, and wait until all others have."""
        self._tell(_ENDED_WELL, wait_s=self._timeout_s)
        deadline = time.monotonic() + self._timeout_s
        for eye in self._eyes:
            eye.join(max(0.0, deadline - time.monotonic()))
        if any(eye.is_alive() for eye in self._eyes) and not self._alarm.done():
            self._give_up([], "all ranks to end")
        if self._alarm.done():
            self.explain(None, what="all ranks to end")

    def _look(self, peer: int) -> None:
        # Who hears nothing, as in a rehearsal in which that rank has a stand-in, has no reason for alarm.
        word = torch.tensor([_ENDED_WELL], dtype=torch.int64)
        try:
            work = dist.irecv(word, group=self._group, group_src=peer)
            assert work is not None
            work.wait()
        except RuntimeError:
            self._raise_alarm(f"{self._name(peer)} is gone")
            return
        if int(word) != _ENDED_WELL:
            self._raise_alarm(f"{self._name(int(word))} is silent, as {self._name(peer)} says")

    def _raise_alarm(self, reason: str) -> None:
        with self._lock:
            if not self._alarm.done():
                self._alarm.set_result(reason)

    def _give_up(self, suspects: Sequence[int], what: str) -> NoReturn:
        if len(suspects) == 1:
            self._tell(suspects[0], wait_s=_LAST_WORDS_S)
        who = " or ".join(map(self._name, suspects)) or "a peer"
        raise MethodError(
            f"a rank of a pipeline must be heard of within timeout_s ({self._timeout_s:g} s), but {who} was silent for "
            f"that long, while {self._name(self._rank)} waited for {what}; see what it does, or give more time"
        )

    def _tell(self, word: int, *, wait_s: float) -> None:
        """The same word to all others, whoever still listens."""
        message = torch.tensor([word], dtype=torch.int64)
        peers = [peer for peer in range(dist.get_world_size(self._group)) if peer != self._rank]
        threads = [threading.Thread(target=self._say, args=[message, peer], daemon=True) for peer in peers]
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _say(self, message: Tensor, peer: int) -> None:
        with suppress(RuntimeError):  # who is gone needs no telling
            dist.send(message, group=self._group, group_dst=peer)


def _is_of_connection(error: BaseException) -> bool:
    """Whether it may come from a peer that is gone: gloo raises plain RuntimeErrors."""
    words = ("gloo", "onnection", "imed out", "NCCL", "roken pipe")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
