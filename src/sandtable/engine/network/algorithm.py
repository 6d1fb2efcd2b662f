"""What every algorithm of a collective must say of itself."""

from abc import ABC, abstractmethod
from typing import ClassVar

from sandtable.engine.network.job import Job
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import Pattern

__all__ = ["Algorithm"]


class Algorithm(ABC):
    """A way to carry out some operations. `speeds` names the constants it goes by.

    `is_automatic`: NCCL may choose it by itself; the others must be asked for.
    """

    name: ClassVar[str]
    speeds: ClassVar[str]
    ops: ClassVar[frozenset[str]]
    is_automatic: ClassVar[bool] = True

    @abstractmethod
    def pattern(self, job: Job, generation: Generation) -> Pattern:
        """Links, rates and steps, for one byte of the message."""

    def is_possible(self, job: Job) -> bool:
        """Whether the machines of `job` can do it."""
        return job.op in self.ops

    def num_channels(self, generation: Generation) -> int:
        """Thread blocks that drive it, a multiprocessor each."""
        return generation.num_channels
