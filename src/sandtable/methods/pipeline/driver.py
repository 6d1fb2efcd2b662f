"""Schedule drivers: what carries a schedule out on one rank, and what it works with."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sandtable.methods.pipeline.averaging import Averaging
from sandtable.methods.pipeline.layout import StageLayout
from sandtable.methods.pipeline.links import Links
from sandtable.methods.pipeline.record import PipelineRecord
from sandtable.methods.pipeline.ties import Ties

__all__ = ["Batch", "Loss", "PipelineSetup", "ScheduleDriver"]

Batch = Tensor | Sequence[Tensor]
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSetup:
    """This rank's part of a pipeline. Ranks are those of the pipeline's group."""

    layout: StageLayout
    rank: int
    modules: Mapping[int, nn.Module]
    """The stages held here, by number."""
    optimizer: Optimizer | None
    loss: Loss
    averaging: Averaging
    ties: Ties
    links: Links
    record: PipelineRecord
    device: torch.device
    recompute: bool

    @property
    def holds_first(self) -> bool:
        return 0 in self.modules

    @property
    def holds_last(self) -> bool:
        return self.layout.num_stages - 1 in self.modules


class ScheduleDriver(ABC):
    """Carries a schedule out on one rank."""

    @abstractmethod
    def step(self, inputs: Batch | None, targets: Any) -> Tensor | None:
        """Train on one more minibatch; return the loss where it is known."""

    def drain(self) -> None:  # noqa: B027  nothing is in flight between steps, unless a driver overrides this
        """Finish what is in flight. All ranks call it."""

    @property
    def most_versions_held(self) -> int:
        """Return the largest number of weight versions this rank has held at once."""
        return 1

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps depend on besides weights and optimizer, when nothing is in flight."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
