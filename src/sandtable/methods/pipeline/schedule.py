"""Schedules: the order in which stages run their forward and backward passes, and when weights change.

    GPipe(m)         all m micro-batches forward, then all backward, then one update; m in flight in every stage
    Flush(m)         forward and backward alternate, then one update; at most as many in flight as stages
    Interleaved(m)   the same with several stages per rank: a shorter fill, more messages
    PipeDream()      never flushes: minibatch after minibatch, with stashed weights
    PipeDream2BW(m)  the same with an update every m micro-batches, and two versions of the weights

The first three are torch.distributed.pipelining's, and match training in one process; torch's module is imported on
first use, since that takes seconds. The last two are our own.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sandtable.errors import MethodError
from sandtable.methods.pipeline.asynchronous import AsynchronousDriver
from sandtable.methods.pipeline.driver import PipelineSetup, ScheduleDriver
from sandtable.methods.pipeline.layout import StageLayout
from sandtable.methods.pipeline.version_rules import Stashing, TwoVersions, VersionRule, VerticalSync

__all__ = ["Flush", "GPipe", "Interleaved", "PipeDream", "PipeDream2BW", "Schedule"]


class Schedule(ABC):
    """One way to run a pipeline."""

    is_interleaved: ClassVar[bool] = False

    def can_tie(self, layout: StageLayout, *, is_alone: bool) -> bool:
        """Return whether copies of a parameter in several stages can be kept equal; `is_alone`: no other pipelines."""
        return True

    @abstractmethod
    def check(self, layout: StageLayout) -> None:
        """Raise `MethodError` for a layout that cannot work."""

    @abstractmethod
    def driver(self, setup: PipelineSetup) -> ScheduleDriver:
        """Return the driver that carries the schedule out on one rank."""


@dataclass(frozen=True)
class _Synchronous(Schedule):
    """Cuts a batch into micro-batches; all stages make one update when all of these are done."""

    micro_batches: int

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise MethodError(f"micro_batches must be 1 or more, but got {self.micro_batches}; try 4 per stage")

    def check(self, layout: StageLayout) -> None:
        if not layout.has_equal_replicas:
            raise MethodError(
                f"{type(self).__name__} needs the same number of replicas of every stage, but got {layout.replicas}; "
                f"try {(1,) * layout.num_places}, or schedule=PipeDream()"
            )


@dataclass(frozen=True)
class GPipe(_Synchronous):
    """All forward, all backward, one update."""

    def driver(self, setup: PipelineSetup) -> ScheduleDriver:
        from sandtable.methods.pipeline.synchronous import SynchronousDriver, all_forward_first

        return SynchronousDriver(setup, all_forward_first, micro_batches=self.micro_batches)


@dataclass(frozen=True)
class Flush(_Synchronous):
    """One forward, one backward, and one update when the pipeline is empty (PipeDream-flush)."""

    def driver(self, setup: PipelineSetup) -> ScheduleDriver:
        from sandtable.methods.pipeline.synchronous import SynchronousDriver, in_turn

        return SynchronousDriver(setup, in_turn, micro_batches=self.micro_batches)


@dataclass(frozen=True)
class Interleaved(_Synchronous):
    """Flush with two or more stages per rank: rank q of n holds stages q, q + n, q + 2n, ..."""

    is_interleaved: ClassVar[bool] = True

    def driver(self, setup: PipelineSetup) -> ScheduleDriver:
        from sandtable.methods.pipeline.synchronous import SynchronousDriver, interleaved

        return SynchronousDriver(setup, interleaved, micro_batches=self.micro_batches)


@dataclass(frozen=True)
class PipeDream(Schedule):
    """One forward, one backward, without a flush; each stage keeps weights until the minibatches using them are back.

    With `vertical_sync`, a minibatch uses in all stages the version that the input stage had when it entered.
    """

    vertical_sync: bool = False

    def can_tie(self, layout: StageLayout, *, is_alone: bool) -> bool:
        """Return False: stages make their updates at different times."""
        return False

    def check(self, layout: StageLayout) -> None:
        """Accept any replicas."""

    def driver(self, setup: PipelineSetup) -> ScheduleDriver:
        rule: VersionRule = VerticalSync(setup.layout) if self.vertical_sync else Stashing(setup.layout)
        return AsynchronousDriver(setup, rule)


@dataclass(frozen=True)
class PipeDream2BW(Schedule):
    """PipeDream with one update per batch of `micro_batches`, and two versions of the weights."""

    micro_batches: int

    def can_tie(self, layout: StageLayout, *, is_alone: bool) -> bool:
        """Return whether each stage has one rank: tied gradients are sent before they are averaged."""
        return is_alone and layout.num_ranks == layout.num_stages

    def check(self, layout: StageLayout) -> None:
        needed = max((layout.in_flight(stage) - 1) * layout.replicas[stage] for stage in range(layout.num_stages))
        if self.micro_batches < max(needed, 1):
            raise MethodError(
                f"micro_batches of PipeDream2BW must be {max(needed, 1)} or more with replicas {layout.replicas}, so "
                f"that a new version is ready when it is needed, but got {self.micro_batches}"
            )
        if any(self.micro_batches % count for count in layout.replicas):
            raise MethodError(
                f"micro_batches ({self.micro_batches}) must be a multiple of the replicas of every stage, but those "
                f"are {layout.replicas}, so that all replicas do the same work"
            )

    def driver(self, setup: PipelineSetup) -> ScheduleDriver:
        rule = TwoVersions(setup.layout, self.micro_batches)
        return AsynchronousDriver(setup, rule, parts=self.micro_batches)
