"""The interface of every collective algorithm."""

from abc import ABC, abstractmethod
from typing import ClassVar

from sandtable.engine.network.collective_call import CollectiveCall
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import LinkPattern

__all__ = ["Algorithm"]


class Algorithm(ABC):
    """A way to carry out some operations. `speeds` names the constants it uses.

    `is_automatic`: NCCL may choose it; other algorithms are used only by name.
    """

    name: ClassVar[str]
    speeds: ClassVar[str]
    ops: ClassVar[frozenset[str]]
    is_automatic: ClassVar[bool] = True

    @abstractmethod
    def pattern(self, call: CollectiveCall, generation: Generation) -> LinkPattern:
        """Return links, rates and steps, for one byte of the message."""

    def is_possible(self, call: CollectiveCall) -> bool:
        """Return whether the machines of `call` can do it."""
        return call.op in self.ops

    def num_channels(self, generation: Generation) -> int:
        """Return the number of thread blocks that drive it, one multiprocessor each."""
        return generation.num_channels
