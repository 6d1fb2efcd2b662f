"""A worker's tables: its gradients laid end to end for pushing, and pulled weights put back into its model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sandtable.methods.server.plan import Plan, trainable
from sandtable.methods.server.shard import raw_bytes

__all__ = ["Tables"]


class Tables:
    """Of one model and one plan. Gradients stay on the model's device; weights arrive in memory of the host."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self._plan = plan
        self._parameters = trainable(model)
        self._by_name = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._gradients = {
            dtype: torch.zeros(sum(p.numel() for _, p in table), dtype=dtype, device=table[0][1].device)
            for dtype, table in self._parameters.items()
        }
        self._arrivals = [
            torch.empty(sum(part.num_bytes for part in parts), dtype=torch.uint8) for parts in plan.shards
        ]

    def parameters(self) -> list[nn.Parameter]:
        return list(self._by_name.values())

    def devices(self, shard: int) -> list[torch.device]:
        """Where the gradients of each part of `shard` are."""
        return [self._gradients[part.dtype].device for part in self._plan.shards[shard]]

    def gather(self, gradients: Sequence[Tensor | None] | None = None) -> set[str]:
        """Lay out `gradients`, one a trainable parameter in the model's order, or those in `.grad`. Names without one.

        Sparse gradients become dense.
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
        """The gradients of `shard`, one vector a dtype, as last gathered."""
        return [self._gradients[part.dtype][part.start : part.stop] for part in self._plan.shards[shard]]

    def absent_pieces(self, shard: int, absent: set[str]) -> list[int]:
        """The numbers of the pieces of `shard` that belong to the parameters named."""
        names = [piece.name for part in self._plan.shards[shard] for piece in part.pieces]
        return [number for number, name in enumerate(names) if name in absent]

    def arrival(self, shard: int) -> memoryview:
        """Where the weights of `shard` are received."""
        return raw_bytes(self._arrivals[shard])

    @torch.no_grad()
    def scatter(self, shards: Sequence[int] | None = None) -> None:
        """Put the weights that have arrived into the model: those of all shards, or of `shards`."""
        # Of a parameter that is not contiguous, a copy, written back below.
        flat = {name: parameter.detach().reshape(-1) for name, parameter in self._by_name.items()}
        for shard in range(len(self._arrivals)) if shards is None else shards:
            arrival, offset = self._arrivals[shard], 0
            for part in self._plan.shards[shard]:
                vector = arrival[offset : offset + part.num_bytes].view(part.dtype)
                sizes = [piece.stop - piece.start for piece in part.pieces]
                for piece, weights in zip(part.pieces, torch.split(vector, sizes), strict=True):
                    flat[piece.name][piece.start : piece.stop].copy_(weights)
                offset += part.num_bytes
        for name, parameter in self._by_name.items():
            if not parameter.is_contiguous():
                parameter.copy_(flat[name].view(parameter.shape))
