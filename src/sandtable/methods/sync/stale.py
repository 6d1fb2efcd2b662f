"""Stale-synchronous training: a walking party tied by a rope.

Everybody walks at their own pace, but the rope is `bound` steps long: who is further ahead of the last one than that
waits until the last one has caught up. With a rope of length 0 all walk in step (each gradient is still applied by
itself; for one update on the mean of all use `BulkSynchronous`); with one that never ends it is `Asynchronous`.

Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013.
"""

from dataclasses import dataclass

from sandtable.errors import MethodError
from sandtable.methods.sync.served import ServedSync

__all__ = ["StaleSynchronous"]


@dataclass(frozen=True)
class StaleSynchronous(ServedSync):
    """A worker more than `bound` steps ahead of the slowest waits for it; only with `ParameterServer`."""

    bound: int

    def __post_init__(self) -> None:
        if self.bound < 0:
            raise MethodError(
                f"bound must be 0 or more steps, but got {self.bound}; for no bound at all use Asynchronous()"
            )
