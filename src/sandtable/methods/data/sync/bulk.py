"""Bulk-synchronous training: every step is one step of all workers, on the mean of their gradients.

    w ← w - η · (1/P) · Σ_j ∇E_j(w)

With AllReduce it equals training in one process on the joined batch. With Gossip each rank follows the mean of its own
and its partners' gradients, and replicas differ slightly.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sandtable.methods.data.exchange.exchange import ExchangeCost
from sandtable.methods.data.sync.gradients import GradientExchange
from sandtable.methods.data.sync.sync import Sync, SyncDriver, SyncSetup
from sandtable.methods.server.sync import ServerSync

__all__ = ["BulkSynchronous"]


@dataclass(frozen=True)
class BulkSynchronous(Sync, ServerSync):
    """Exchange gradients at every step; no rank starts the next step before all have finished this one."""

    exchanges_gradients: ClassVar[bool] = True

    @property
    def max_lead(self) -> None:
        return None

    def driver(self, setup: SyncSetup) -> SyncDriver:
        return _Bulk(setup)


class _Bulk(SyncDriver):
    def __init__(self, setup: SyncSetup) -> None:
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

    def cost(self) -> ExchangeCost:
        return self._gradients.cost()

    def close(self) -> None:
        self._gradients.close()

    def state_dict(self) -> dict[str, Any]:
        return self._gradients.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._gradients.load_state_dict(state)
