"""Data parallelism: a replica per worker, with sync, exchange and compression as the settings give them."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from types import ModuleType

from sandtable.study.kinds.trainer import EpochCost, LoopTrainer, MethodKind, Trainer, TrainerSetup
from sandtable.study.settings import StudySettings

__all__ = ["DataParallelKind"]


@dataclass(frozen=True, kw_only=True)
class DataParallelKind(MethodKind):
    """Sync, exchange and compression, and `methods`, the module they come from."""

    methods: ModuleType
    sync: object
    exchange: object
    compression: object

    def check(self, settings: StudySettings) -> None:
        self.methods.check_combination(
            sync=self.sync, exchange=self.exchange, compression=self.compression, num_ranks=settings.workers
        )

    def trainer(self, setup: TrainerSetup) -> Trainer:
        return DataParallelTrainer(self, setup)


class DataParallelTrainer(LoopTrainer):
    """Drives `DataParallel` of the methods."""

    def __init__(self, kind: DataParallelKind, setup: TrainerSetup) -> None:
        super().__init__(setup, setup.own_batches)
        self._optimizer = setup.sgd(self.model.parameters())
        self._parallel = kind.methods.DataParallel(
            self.model,
            self._optimizer,
            sync=kind.sync,
            exchange=kind.exchange,
            compression=kind.compression,
            seed=setup.settings.seed,
        )

    def set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def step(self) -> None:
        self._parallel.step()

    def finish(self) -> None:
        """Synchronise the replicas. Training is for one model, so this counts."""
        self._parallel.synchronize()

    def cost(self) -> EpochCost:
        self._parallel.record.end_epoch(disagreement=False)
        measured = self._parallel.record.to_dict()["epochs"][-1]
        return EpochCost(**{field.name: float(measured[field.name]) for field in fields(EpochCost)})

    def paused(self) -> AbstractContextManager[None]:
        paused: AbstractContextManager[None] = self._parallel.record.paused()
        return paused

    def close(self) -> None:
        self._parallel.close()
