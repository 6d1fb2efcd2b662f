"""Post-local SGD: bulk-synchronous at first, then local.

Bulk-synchronous for the first `switch_at` steps, when gradients are large and replicas would soon be far apart; then
LocalSGD(period). Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2018.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sandtable.errors import MethodError
from sandtable.methods.data.exchange.exchange import ExchangeCost
from sandtable.methods.data.sync.bulk import BulkSynchronous
from sandtable.methods.data.sync.local_sgd import LocalSGD
from sandtable.methods.data.sync.sync import Sync, SyncDriver, SyncSetup

__all__ = ["PostLocalSGD"]


@dataclass(frozen=True)
class PostLocalSGD(Sync):
    """BulkSynchronous for `switch_at` steps, then LocalSGD(`period`)."""

    exchanges_gradients: ClassVar[bool] = True

    switch_at: int
    period: int

    def __post_init__(self) -> None:
        if self.switch_at < 0:
            raise MethodError(f"switch_at must be 0 or more steps, but got {self.switch_at}; 0 is LocalSGD")
        LocalSGD(self.period)

    def driver(self, setup: SyncSetup) -> SyncDriver:
        return _PostLocal(self, setup)


class _PostLocal(SyncDriver):
    def __init__(self, settings: PostLocalSGD, setup: SyncSetup) -> None:
        self._settings = settings
        self._num_steps = 0
        self._bulk = BulkSynchronous().driver(setup)
        self._local = LocalSGD(settings.period).driver(setup)
        self._choose()

    @property
    def paused(self) -> bool:
        return self._now.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._now.paused = value

    @property
    def replicas_are_equal(self) -> bool:
        return self._bulk.replicas_are_equal and self._local.replicas_are_equal

    def begin(self) -> None:
        self._local.begin()

    def step(self) -> None:
        self._now.step()
        self._num_steps += 1
        if self._num_steps == self._settings.switch_at:
            self._local.begin()
            self._choose()

    def cost(self) -> ExchangeCost:
        return self._local.cost()

    def close(self) -> None:
        self._bulk.close()
        self._local.close()

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_steps": self._num_steps,
            "bulk": self._bulk.state_dict(),
            "local": self._local.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_steps = state["num_steps"]
        self._bulk.load_state_dict(state["bulk"])
        self._local.load_state_dict(state["local"])
        self._choose()

    def _choose(self) -> None:
        is_local = self._num_steps >= self._settings.switch_at
        self._now = self._local if is_local else self._bulk
        self._local.paused = not is_local
        self._bulk.paused = is_local
