"""Watch: every rank watches every other, so that all ranks name a peer that dies at once.

Each pair of ranks has a connection that stays silent until the end; one thread per peer waits on it. A process that
dies closes its connections, and the thread notices. A rank that ends normally sends a message first. One that gives up
because a peer is silent sends that peer's number, so that the others name the silent rank and not the messenger.

The group uses gloo even where tensors use NCCL: a thread that waits there costs nothing.
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

_ENDED_NORMALLY = -1
_REASON_TIMEOUT_S = 2.0
"""How long a rank that gives up tries to send the reason, and one whose connection broke waits for it."""


class Watch:
    """Waits for what peers must send; the error names the peer that is missing."""

    def __init__(self, group: dist.ProcessGroup, *, name: Callable[[int], str], timeout_s: float) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._name = name
        self._timeout_s = timeout_s
        self._alarm: Future[str] = Future()
        self._lock = threading.Lock()
        self.waited_s = 0.0
        """Seconds spent in `wait`."""
        self._threads: list[threading.Thread] = []
        for peer in range(dist.get_world_size(group)):
            if peer != self._rank:
                thread = threading.Thread(target=self._watch, args=[peer], name="sandtable-watch", daemon=True)
                thread.start()
                self._threads.append(thread)

    def wait(self, future: "Future[Result]", *, what: str, suspects: Sequence[int] = ()) -> Result:
        """Return the result of the future; raise if a peer is gone, or if it takes longer than the timeout.

        `suspects` are the peers that it depends on.
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
        """Raise an error that names the peer that is gone or silent; return if the error is not about peers."""
        if error is not None and not _is_of_connection(error):
            return
        wait([self._alarm], timeout=_REASON_TIMEOUT_S)
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
        """Send that this rank ends normally, and wait until all others do."""
        self._broadcast(_ENDED_NORMALLY, wait_s=self._timeout_s)
        deadline = time.monotonic() + self._timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads) and not self._alarm.done():
            self._give_up([], "all ranks to end")
        if self._alarm.done():
            self.explain(None, what="all ranks to end")

    def _watch(self, peer: int) -> None:
        # Nothing may arrive, as in a rehearsal in which that rank has a stand-in: that is no reason for alarm.
        word = torch.tensor([_ENDED_NORMALLY], dtype=torch.int64)
        try:
            work = dist.irecv(word, group=self._group, group_src=peer)
            assert work is not None
            work.wait()
        except RuntimeError:
            self._raise_alarm(f"{self._name(peer)} is gone")
            return
        if int(word) != _ENDED_NORMALLY:
            self._raise_alarm(f"{self._name(int(word))} is silent, as {self._name(peer)} reports")

    def _raise_alarm(self, reason: str) -> None:
        with self._lock:
            if not self._alarm.done():
                self._alarm.set_result(reason)

    def _give_up(self, suspects: Sequence[int], what: str) -> NoReturn:
        if len(suspects) == 1:
            self._broadcast(suspects[0], wait_s=_REASON_TIMEOUT_S)
        who = " or ".join(map(self._name, suspects)) or "a peer"
        raise MethodError(
            f"every rank of a pipeline must respond within timeout_s ({self._timeout_s:g} s), but {who} was silent for "
            f"that long, while {self._name(self._rank)} waited for {what}; see what it does, or raise timeout_s"
        )

    def _broadcast(self, word: int, *, wait_s: float) -> None:
        """Send the same word to all others that still listen."""
        message = torch.tensor([word], dtype=torch.int64)
        peers = [peer for peer in range(dist.get_world_size(self._group)) if peer != self._rank]
        threads = [threading.Thread(target=self._send, args=[message, peer], daemon=True) for peer in peers]
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _send(self, message: Tensor, peer: int) -> None:
        with suppress(RuntimeError):  # a peer that is gone needs no message
            dist.send(message, group=self._group, group_dst=peer)


def _is_of_connection(error: BaseException) -> bool:
    """Return whether the error may come from a peer that is gone; gloo raises plain RuntimeErrors."""
    words = ("gloo", "onnection", "imed out", "NCCL", "roken pipe")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
