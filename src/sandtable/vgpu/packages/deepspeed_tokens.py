"""Random layer-wise token dropping of DeepSpeed (`random_ltd`): a layer sees some tokens, the others pass it by.

token_sort_      sorts the sampled positions of each sequence
token_gather     copies the sampled tokens out of the sequences
token_scatter_   copies them back into their places
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TOKEN_DROPPING"]


def _token_sort_(positions: Tensor, num_tokens: int) -> Tensor:
    return positions.copy_(positions.sort(dim=-1)[0])


def _token_gather(activations: Tensor, positions: Tensor, batch_first: bool) -> Tensor:
    batch, num_kept = positions.shape
    shape = (batch, num_kept) if batch_first else (num_kept, batch)
    kept = activations.new_empty((*shape, activations.shape[2]))
    work = Work(family="indexing", bytes_read=kept.nbytes + positions.nbytes)
    record_kernel("deepspeed::token_gather", inputs=[activations, positions], outputs=[kept], work=work)
    return kept


def _token_scatter_(activations: Tensor, kept: Tensor, positions: Tensor, batch_first: bool) -> Tensor:
    work = Work(family="indexing", bytes_read=kept.nbytes + positions.nbytes, bytes_written=kept.nbytes)
    record_kernel("deepspeed::token_scatter", inputs=[kept, positions], outputs=[activations], work=work)
    return activations


TOKEN_DROPPING: Mapping[str, Callable[..., Tensor]] = {
    "token_sort_": _token_sort_,
    "token_gather": _token_gather,
    "token_scatter_": _token_scatter_,
}
"""The functions of the module that the builder `random_ltd` would build."""
