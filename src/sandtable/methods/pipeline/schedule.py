"""Schedules: in which order the stages of a pipeline do their forward and backward passes, and when weights change.

    GPipe(m)         all m micro-batches forward, then all backward, then one update; m under way in every stage
    Flush(m)         one forward, one backward in turn, then one update; at most as many under way as stages
    Interleaved(m)   the same with several stages a rank: a shorter fill, more messages
    PipeDream()      no end to the filling: minibatch after minibatch, with stashed weights
    PipeDream2BW(m)  the same with an update every m micro-batches, and two versions of the weights

The first three are torch.distributed.pipelining's, and give what one process would; they are imported when one is used,
since that takes seconds. The last two are our own.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sandtable.errors import MethodError
from sandtable.methods.pipeline.asynchronous import AsynchronousDriver
from sandtable.methods.pipeline.driver import Driver, Setup
from sandtable.methods.pipeline.layout import Layout
from sandtable.methods.pipeline.rule import Rule, Stashing, TwoVersions, VerticalSync

__all__ = ["Flush", "GPipe", "Interleaved", "PipeDream", "PipeDream2BW", "Schedule"]


class Schedule(ABC):
    """One way to run a pipeline."""

    is_interleaved: ClassVar[bool] = False

    def can_tie(self, layout: Layout, *, is_alone: bool) -> bool:
        """Whether copies of a parameter in several stages can be kept equal; `is_alone`: without other pipelines."""
        return True

    @abstractmethod
    def check(self, layout: Layout) -> None:
        """Refuse a layout that cannot work."""

    @abstractmethod
    def driver(self, setup: Setup) -> Driver:
        """What carries the schedule out on one rank."""


@dataclass(frozen=True)
class _Synchronous(Schedule):
    """A batch is cut into micro-batches, and all stages make one update when all of them are done."""

    micro_batches: int

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise MethodError(f"micro_batches must be 1 or more, but got {self.micro_batches}; try 4 for each stage")

    def check(self, layout: Layout) -> None:
        if not layout.has_equal_replicas:
            raise MethodError(
                f"{type(self).__name__} needs the same number of replicas of every stage, but got {layout.replicas}; "
                f"try {(1,) * layout.num_places}, or schedule=PipeDream()"
            )


@dataclass(frozen=True)
class GPipe(_Synchronous):
    """All forward, all backward, one update."""

    def driver(self, setup: Setup) -> Driver:
        from sandtable.methods.pipeline.synchronous import SynchronousDriver, all_forward_first

        return SynchronousDriver(setup, all_forward_first, micro_batches=self.micro_batches)


@dataclass(frozen=True)
class Flush(_Synchronous):
    """One forward, one backward, and one update when the pipeline is empty (PipeDream-flush)."""

    def driver(self, setup: Setup) -> Driver:
        from sandtable.methods.pipeline.synchronous import SynchronousDriver, in_turn

        return SynchronousDriver(setup, in_turn, micro_batches=self.micro_batches)


@dataclass(frozen=True)
class Interleaved(_Synchronous):
    """Flush with two or more stages a rank: rank q of n holds stages q, q + n, q + 2n, ..."""

    is_interleaved: ClassVar[bool] = True

    def driver(self, setup: Setup) -> Driver:
        from sandtable.methods.pipeline.synchronous import SynchronousDriver, interleaved

        return SynchronousDriver(setup, interleaved, micro_batches=self.micro_batches)


@dataclass(frozen=True)
class PipeDream(Schedule):
    """One forward, one backward, without end; each stage keeps weights until the minibatches that use them are back.

    `vertical_sync`: a minibatch meets in all stages the version that the input stage had when it entered.
    """

    vertical_sync: bool = False

    def can_tie(self, layout: Layout, *, is_alone: bool) -> bool:
        """Stages make their updates at different times."""
        return False

    def check(self, layout: Layout) -> None:
        """Any replicas will do."""

    def driver(self, setup: Setup) -> Driver:
        rule: Rule = VerticalSync(setup.layout) if self.vertical_sync else Stashing(setup.layout)
        return AsynchronousDriver(setup, rule)


@dataclass(frozen=True)
class PipeDream2BW(Schedule):
    """PipeDream with an update a batch, cut into `micro_batches`, and two versions of the weights."""

    micro_batches: int

    def can_tie(self, layout: Layout, *, is_alone: bool) -> bool:
        """Gradients travel while they are still those of one rank, before they are averaged."""
        return is_alone and layout.num_ranks == layout.num_stages

    def check(self, layout: Layout) -> None:
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

    def driver(self, setup: Setup) -> Driver:
        rule = TwoVersions(setup.layout, self.micro_batches)
        return AsynchronousDriver(setup, rule, parts=self.micro_batches)
