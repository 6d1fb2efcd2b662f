"""Chunked dims: how the dims of distributed tensors are cut where the ranks of a group do not divide them.

FSDP2 and DTensor cut a dim as `torch.chunk` does: n rows over W ranks make chunks of ceil(n / W) rows, so the first
ranks hold a full chunk each, one may hold a part of one, and the ranks behind it nothing. 576 rows over 512 ranks: two
each on ranks 0 to 287. A captured rank reports the dims that are cut unevenly; arithmetic then tells which of the ranks
that do not run hold chunks of the same sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sandtable.trace.groups import Group
from sandtable.vgpu.group_registry import GroupRegistry

if TYPE_CHECKING:
    from torch.nn import Parameter

__all__ = ["ChunkedDim", "chunk_labels", "read_chunked_dims"]

Ints = npt.NDArray[np.int64]

ChunkedDim = tuple[int, int]
"""The length of a dim, and the group that it is cut over: an index into the rank's own groups."""


def read_chunked_dims(parameters: Iterable[Parameter], groups: Sequence[Group]) -> tuple[ChunkedDim, ...]:
    """Return the dims of these parameters that a group of this rank does not divide, each once."""
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is None:
        return ()
    places = {group.ranks: place for place, group in reversed(list(enumerate(groups)))}
    specs = {parameter._spec for parameter in parameters if isinstance(parameter, tensor.DTensor)}
    uneven = {(length, members) for spec in specs for length, members in _uneven_dims(spec)}
    return tuple(sorted((length, places[members]) for length, members in uneven if members in places))


def _uneven_dims(spec: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield length and ranks of each uneven cut of a tensor with this layout."""
    mesh, coordinate, lengths = spec.mesh, spec.mesh.get_coordinate(), list(spec.shape)
    for axis in _cutting_axes(spec.placements) if coordinate is not None else ():
        dim, num_chunks = spec.placements[axis].dim, mesh.size(axis)
        if lengths[dim] % num_chunks:
            others = [place for number, place in enumerate(coordinate) if number != axis]
            yield lengths[dim], tuple(mesh.mesh.movedim(axis, -1)[tuple(others)].tolist())
        lengths[dim] = int(_chunk_lengths(lengths[dim], num_chunks)[coordinate[axis]])


def _cutting_axes(placements: Sequence[Any]) -> list[int]:
    """Return the axes of a mesh that cut a tensor, in the order of the cuts.

    FSDP on top of tensor parallelism cuts what that has left, though its axis comes first: a strided placement.
    """
    axes = [axis for axis, placement in enumerate(placements) if hasattr(placement, "dim")]
    strided = [axis for axis in axes if hasattr(placements[axis], "split_factor")]
    return [*(axis for axis in axes if axis not in strided), *reversed(strided)]


def chunk_labels(ranks: Ints, dims: Iterable[ChunkedDim], own_groups: Sequence[int], registry: GroupRegistry) -> Ints:
    """Return one label per rank, equal for ranks that hold chunks of the same lengths.

    `dims` are those that a rank reported whose own list of groups is `own_groups`.
    """
    held = [np.zeros(len(ranks), dtype=np.int64)]
    for length, group in dims:
        entry = own_groups[group]
        positions = registry.positions(entry)[ranks]
        chunks = np.append(_chunk_lengths(length, len(registry.members[entry])), 0)  # the last: for ranks in no group
        held.append(chunks[positions])
    return np.unique(np.stack(held), axis=1, return_inverse=True)[1].reshape(-1)


def _chunk_lengths(length: int, num_chunks: int) -> Ints:
    """Return the lengths of the chunks that `torch.chunk` makes, and 0 for those that are missing."""
    full = -(-length // num_chunks)
    return np.clip(length - full * np.arange(num_chunks, dtype=np.int64), 0, full)
