"""Bulk-synchronous training: every step is one step of all workers, on the mean of their gradients.

    w ← w - η · (1/P) · Σ_j ∇E_j(w)

With AllReduce it equals training in one process on the joined batch. With Gossip each rank follows the mean of its
own and its partners' gradients, and replicas differ a little.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sandtable.methods.exchange import Cost
from sandtable.methods.sync.gradients import GradientExchange
from sandtable.methods.sync.sync import Driver, Setup, Sync

__all__ = ["BulkSynchronous"]


@dataclass(frozen=True)
class BulkSynchronous(Sync):
    """Exchange gradients at every step; nobody takes the next before everybody has finished this one."""

    exchanges_gradients: ClassVar[bool] = True

    def driver(self, setup: Setup) -> Driver:
        return _Bulk(setup)


class _Bulk(Driver):
    def __init__(self, setup: Setup) -> None:
        self._optimizer = setup.optimizer
        self._reaches_all = setup.exchange.reaches_all
        self._gradients = GradientExchange(setup, setup.exchange, setup.wire, setup.compression)

    @property
    def paused(self) -> bool:
        return self._gradients.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._gradients.paused = value

    @property
    def replicas_are_equal(self) -> bool:
        return self._reaches_all

    def step(self) -> None:
        self._gradients.finish()
        self._optimizer.step()

    def cost(self) -> Cost:
        return self._gradients.cost()

    def close(self) -> None:
        self._gradients.close()

    def state_dict(self) -> dict[str, Any]:
        return self._gradients.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._gradients.load_state_dict(state)
