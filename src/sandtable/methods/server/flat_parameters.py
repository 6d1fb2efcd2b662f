"""A worker's parameters, flat: gradients laid end to end for pushing, and pulled weights put back into the model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sandtable.methods.server.shard import raw_bytes
from sandtable.methods.server.shard_plan import ShardPlan, trainable

__all__ = ["FlatParameters"]


class FlatParameters:
    """The flat vectors of one model under one plan.

    Gradients stay on the model's device; weights arrive on the host.
    """

    def __init__(self, model: nn.Module, plan: ShardPlan) -> None:
        self._plan = plan
        self._parameters = trainable(model)
        self._by_name = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._gradients = {
            dtype: torch.zeros(sum(p.numel() for _, p in table), dtype=dtype, device=table[0][1].device)
            for dtype, table in self._parameters.items()
        }
        self._buffers = [torch.empty(sum(part.num_bytes for part in parts), dtype=torch.uint8) for parts in plan.shards]

    def parameters(self) -> list[nn.Parameter]:
        return list(self._by_name.values())

    def devices(self, shard: int) -> list[torch.device]:
        """Return the devices of the gradients of `shard`, one per part."""
        return [self._gradients[part.dtype].device for part in self._plan.shards[shard]]

    def gather(self, gradients: Sequence[Tensor | None] | None = None) -> set[str]:
        """Lay out `gradients`, one per trainable parameter in the model's order, or those in `.grad`.

        Return the names of parameters without a gradient. Sparse gradients become dense.
        """
        given = dict(zip(self._by_name, gradients, strict=True)) if gradients is not None else None
        absent = set()
        for dtype, table in self._parameters.items():
            offset = 0
            for name, parameter in table:
                target = self._gradients[dtype][offset : offset + parameter.numel()]
                gradient = parameter.grad if given is None else given[name]
                if gradient is None:
                    absent.add(name)
                    target.zero_()
                else:
                    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
                    target.copy_(dense.detach().reshape(-1))
                offset += parameter.numel()
        return absent

    def vectors(self, shard: int) -> list[Tensor]:
        """Return the gradients of `shard`, one vector per dtype, as last gathered."""
        return [self._gradients[part.dtype][part.start : part.stop] for part in self._plan.shards[shard]]

    def absent_slices(self, shard: int, absent: set[str]) -> list[int]:
        """Return the numbers of the slices of `shard` that belong to the parameters in `absent`."""
        names = [parameter_slice.name for part in self._plan.shards[shard] for parameter_slice in part.slices]
        return [number for number, name in enumerate(names) if name in absent]

    def receive_buffer(self, shard: int) -> Tensor:
        """Return the bytes in which the weights of `shard` are received: its parts, end to end."""
        return self._buffers[shard]

    def receive_view(self, shard: int) -> memoryview:
        """Return the memory of `receive_buffer`."""
        return raw_bytes(self._buffers[shard])

    @torch.no_grad()
    def scatter(self, shards: Sequence[int] | None = None) -> None:
        """Put the received weights into the model: those of all shards, or of `shards`."""
        # For a non-contiguous parameter this is a copy, written back below.
        flat = {name: parameter.detach().reshape(-1) for name, parameter in self._by_name.items()}
        for shard in range(len(self._buffers)) if shards is None else shards:
            received, offset = self._buffers[shard], 0
            for part in self._plan.shards[shard]:
                vector = received[offset : offset + part.num_bytes].view(part.dtype)
                sizes = [parameter_slice.num_elements for parameter_slice in part.slices]
                for parameter_slice, weights in zip(part.slices, torch.split(vector, sizes), strict=True):
                    flat[parameter_slice.name][parameter_slice.start : parameter_slice.stop].copy_(weights)
                offset += part.num_bytes
        for name, parameter in self._by_name.items():
            if not parameter.is_contiguous():
                parameter.copy_(flat[name].view(parameter.shape))
