"""Buffers: what a model stores without learning it, such as the running statistics of BatchNorm."""

import torch
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.transport.vectors import flatten
from sandtable.methods.transport.wire import Wire

__all__ = ["Buffers"]

_POLICIES = ("average", "first", "local")


class Buffers:
    """The buffers of a model on all ranks, by policy.

    "average": floating-point buffers become the mean of all ranks, others (counters) rank 0's. "first": all become
    rank 0's. "local": each rank keeps its own.
    """

    def __init__(self, model: nn.Module, wire: Wire, *, policy: str) -> None:
        if policy not in _POLICIES:
            raise MethodError(f'buffers must be "average", "first" or "local", but got {policy!r}; try "average"')
        self._model = model
        self._wire = wire
        self._policy = policy

    def start_equal(self) -> None:
        if self._policy != "local":
            self._take_first(self._now())

    def exchange(self) -> None:
        buffers = self._now()
        if self._policy == "average":
            for vector in flatten(buffer for buffer in buffers if buffer.is_floating_point()):
                vector.load_weights()
                self._wire.all_reduce(vector.data)
                vector.data.div_(self._wire.size)
                vector.store_weights()
            self._take_first([buffer for buffer in buffers if not buffer.is_floating_point()])
        elif self._policy == "first":
            self._take_first(buffers)

    def _now(self) -> list[Tensor]:
        """Return the current buffers: a module may replace a tensor with a new one at any time."""
        return list(self._model.buffers())

    def _take_first(self, buffers: list[Tensor]) -> None:
        for vector in flatten(buffers):
            vector.load_weights()
            raw = vector.data.view(torch.uint8) if vector.data.dtype == torch.bool else vector.data
            self._wire.broadcast(raw)
            vector.store_weights()
