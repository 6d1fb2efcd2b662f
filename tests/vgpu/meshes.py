"""Meshes of ranks for tests: the groups that a tp x pp x dp script makes, in the order DeviceMesh makes them."""

from collections.abc import Iterator

import numpy as np

from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.protocol import GroupsMade

Named = tuple[str, tuple[int, ...]]


def mesh_groups(*, pp: int = 1, dp: int = 1, cp: int = 1, tp: int = 1) -> list[Named]:
    """World, then all groups of each axis longer than one. Ranks count tp fastest, then cp, dp and pp."""
    mesh = np.arange(pp * dp * cp * tp).reshape(pp, dp, cp, tp)
    groups: list[Named] = [("world", tuple(range(mesh.size)))]
    for axis, name in enumerate(("pp", "dp", "cp", "tp")):
        if mesh.shape[axis] > 1:
            groups += [(name, tuple(row)) for row in _rows(mesh, axis)]
    return groups


def registry_of(world_size: int, groups: list[Named], *, ranks: tuple[int, ...] = (0,)) -> GroupRegistry:
    registry = GroupRegistry(world_size)
    for rank in ranks:
        registry.announce(rank, GroupsMade.of(groups))
    return registry


def _rows(mesh: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", axis: int) -> Iterator[list[int]]:
    for row in np.moveaxis(mesh, axis, -1).reshape(-1, mesh.shape[axis]):
        yield row.tolist()
