"""Syncs that a parameter server carries out: how far the workers may drift apart.

*Asynchronous*: no worker waits. A worker pushes its gradient to the servers, which apply it at once, and pulls
the current weights. Between its pull and its next push other workers push too: its gradient is *stale* by that many
updates. With P workers of equal speed that is P - 1 updates on average, so a learning rate that suits one worker is
often too large for many. Dean et al., "Large Scale Distributed Deep Networks", 2012; Recht et al., "Hogwild!", 2011.

*Stale-synchronous*: a walking party tied by a rope of `bound` steps. A worker further ahead of the slowest than that
waits. With a bound of 0 all workers keep step (each gradient is still applied separately; for one update on the mean of
all use `BulkSynchronous`); with an infinite one it is `Asynchronous`. Ho et al., "More Effective Distributed ML via a
Stale Synchronous Parallel Parameter Server", 2013.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from sandtable.errors import MethodError

__all__ = ["Asynchronous", "ServerSync", "StaleSynchronous", "check_sync"]


class ServerSync(ABC):
    """A sync that a parameter server can carry out."""

    @property
    @abstractmethod
    def max_lead(self) -> float | None:
        """How many steps a worker may be ahead of the slowest; None where servers apply one mean of all per step."""


@dataclass(frozen=True)
class Asynchronous(ServerSync):
    """Each worker at its own pace; only with `ParameterServer`."""

    @property
    def max_lead(self) -> float:
        return math.inf


@dataclass(frozen=True)
class StaleSynchronous(ServerSync):
    """A worker more than `bound` steps ahead of the slowest waits for it; only with `ParameterServer`."""

    bound: int

    def __post_init__(self) -> None:
        if self.bound < 0:
            raise MethodError(
                f"bound must be 0 or more steps, but got {self.bound}; for no bound at all use Asynchronous()"
            )

    @property
    def max_lead(self) -> float:
        return self.bound


def check_sync(sync: object) -> ServerSync:
    """Return `sync` if a parameter server can carry it out; refuse any other."""
    if not isinstance(sync, ServerSync):
        raise MethodError(
            "sync must be BulkSynchronous(), StaleSynchronous(bound) or Asynchronous() with a parameter server, "
            f"but got {sync!r}; "
            "StaleSynchronous with the period as its bound is nearest to local steps"
        )
    return sync
