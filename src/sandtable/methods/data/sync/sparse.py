"""Sparse gradients: an embedding of a million rows of which a batch touches a hundred.

They stay sparse: every rank sends its rows with their indices to all others, and the mean is sparse again, as
optimizers for sparse gradients require. Cost: N-1 messages of rows·(8·dims + row) bytes each; compression does not
apply to them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sandtable.methods.transport.wire import Wire

__all__ = ["SparseGradients"]


class SparseGradients:
    """Averages gradients in torch's COO form over ranks, for parameters known to have such."""

    def __init__(self, parameters: Sequence[Tensor], wire: Wire) -> None:
        self._parameters = list(parameters)
        self._wire = wire

    def exchange(self) -> None:
        for parameter in self._parameters:
            capacity_bytes = 8 + parameter.nbytes + 8 * parameter.dim() * parameter.numel()
            own = _pack(parameter)
            messages = self._wire.gather_messages(own, capacity_bytes=capacity_bytes)
            parameter.grad = _mean([message for message in messages if len(message)], parameter, self._wire.size)


def _pack(parameter: Tensor) -> Tensor:
    """Pack number of rows, indices and values; return nothing where there is no gradient."""
    gradient = parameter.grad
    if gradient is None:
        return torch.empty(0, dtype=torch.uint8, device=parameter.device)
    if not gradient.is_sparse:
        gradient = gradient.to_sparse(1)
    gradient = gradient.coalesce()
    indices, values = gradient.indices(), gradient.values()
    count = torch.tensor([indices.shape[1]], dtype=torch.int64, device=parameter.device)
    pieces = [count, indices.contiguous().flatten(), values.contiguous().flatten()]
    return torch.cat([piece.view(torch.uint8) for piece in pieces])


def _mean(messages: list[Tensor], parameter: Tensor, size: int) -> Tensor | None:
    if not messages:
        return None
    all_indices, all_values = [], []
    for message in messages:
        count = int(message[:8].view(torch.int64))
        end = 8 + 8 * count
        all_indices.append(message[8:end].view(torch.int64).view(1, count))
        all_values.append(message[end:].clone().view(parameter.dtype).view(count, *parameter.shape[1:]))
    mean = torch.sparse_coo_tensor(
        torch.cat(all_indices, dim=1), torch.cat(all_values) / size, parameter.shape, check_invariants=False
    )
    return mean.coalesce()
