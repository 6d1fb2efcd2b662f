"""A replica on every worker, and `DataParallel` between them: sync, exchange and compression as the settings say."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from sandtable.study.kinds.kind import Kind
from sandtable.study.kinds.setup import Setup
from sandtable.study.kinds.stepping import Stepping
from sandtable.study.kinds.trainer import Cost, Trainer
from sandtable.study.settings import StudySettings

__all__ = ["DataParallel"]


@dataclass(frozen=True, kw_only=True)
class DataParallel(Kind):
    """`methods` is the module that the three axes come from."""

    methods: ModuleType
    axes: dict[str, Any]

    def check(self, settings: StudySettings) -> None:
        self.methods.check_combination(**self.axes, num_ranks=settings.workers)

    def trainer(self, setup: Setup) -> Trainer:
        return _Trainer(self, setup)


class _Trainer(Stepping):
    def __init__(self, kind: DataParallel, setup: Setup) -> None:
        super().__init__(setup, setup.own_batches)
        self._optimizer = setup.sgd(self.model.parameters())
        self._parallel = kind.methods.DataParallel(self.model, self._optimizer, **kind.axes, seed=setup.settings.seed)

    def set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def step(self) -> None:
        self._parallel.step()

    def finish(self) -> None:
        """One model is what training is for, so its cost counts."""
        self._parallel.synchronize()

    def cost(self) -> Cost:
        self._parallel.record.end_epoch(disagreement=False)
        measured = self._parallel.record.to_dict()["epochs"][-1]
        return Cost(**{field.name: float(measured[field.name]) for field in fields(Cost)})

    def paused(self) -> AbstractContextManager[None]:
        paused: AbstractContextManager[None] = self._parallel.record.paused()
        return paused

    def close(self) -> None:
        self._parallel.close()
