"""How the members of groups are spread over nodes, in NCCL's order: node by node, by slot."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from sandtable.engine.network.transfer import Floats, Ints
from sandtable.errors import ClusterError

__all__ = ["GroupLayout"]


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupLayout:
    """`num_groups` groups of `size` ranks, flattened: one entry per member, one *run* for each node of a group.

    `ranks` are the members, group after group. Run r belongs to group `run_group[r]` and holds the `run_length[r]`
    members from `run_start[r]` on. `run[i]` and `local[i]` are the run of member i and its position there.
    """

    num_groups: int
    size: int
    ranks: Ints
    run: Ints
    local: Ints
    run_group: Ints
    run_start: Ints
    run_length: Ints

    @classmethod
    def of(cls, groups: npt.ArrayLike, *, node_of: npt.NDArray[np.integer], slot_of: npt.NDArray[np.integer]) -> Self:
        table = _check(groups, num_ranks=len(node_of))
        num_groups, size = table.shape
        place = node_of[table].astype(np.int64) * (int(slot_of.max(initial=0)) + 1) + slot_of[table]
        order = np.argsort(place, axis=1, kind="stable")
        ranks = np.take_along_axis(table, order, axis=1)
        _refuse_twins(np.take_along_axis(place, order, axis=1), ranks)
        nodes = node_of[ranks]
        starts = np.ones(table.shape, dtype=bool)
        starts[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
        run_start = np.flatnonzero(starts.ravel()).astype(np.int32)
        run = np.cumsum(starts.ravel(), dtype=np.int32) - 1
        return cls(
            num_groups=num_groups,
            size=size,
            ranks=ranks.ravel().astype(np.int32),
            run=run.astype(np.int32),
            local=(np.arange(num_groups * size, dtype=np.int32) - run_start[run]).astype(np.int32),
            run_group=(run_start // size).astype(np.int32),
            run_start=run_start,
            run_length=np.diff(run_start, append=num_groups * size).astype(np.int32),
        )

    @cached_property
    def group(self) -> Ints:
        """The group of each member."""
        return self.run_group[self.run]

    @cached_property
    def num_nodes(self) -> Ints:
        """The number of nodes of each group."""
        return np.bincount(self.run_group, minlength=self.num_groups).astype(np.int32)

    @cached_property
    def first_run(self) -> Ints:
        """The first run of each group."""
        return (np.cumsum(self.num_nodes) - self.num_nodes).astype(np.int32)

    @cached_property
    def num_rails(self) -> Ints:
        """The members on the node where a group has fewest: all its nodes have at least this many ways in and out."""
        return np.minimum.reduceat(self.run_length, self.first_run).astype(np.int32)

    @property
    def max_nodes(self) -> int:
        return int(self.num_nodes.max())

    @property
    def max_local(self) -> int:
        return int(self.run_length.max())

    def next_local(self) -> Ints:
        """Return the member after each one in its run, round to the first (a run of one: itself)."""
        return self.run_start[self.run] + (self.local + 1) % self.run_length[self.run]

    def on_run(self, members: Ints, runs: Ints) -> Ints:
        """Return the members at the same local position as `members`, in `runs`."""
        return self.run_start[runs] + self.local[members]

    def rails(self) -> Ints:
        """Return the members at a local position that every node of their group has: rings leave nodes by them."""
        return np.flatnonzero(self.local < self.num_rails[self.group]).astype(np.int32)

    def rail_weight(self, members: Ints) -> Floats:
        """Return the part of a group's data that leaves by each of `members`, which are rails."""
        weight: Floats = 1.0 / self.num_rails[self.group[members]]
        return weight


def _check(groups: npt.ArrayLike, *, num_ranks: int) -> npt.NDArray[np.int64]:
    table = np.asarray(groups)
    if table.ndim != 2 or table.size == 0 or not np.issubdtype(table.dtype, np.integer):
        raise ClusterError(
            f"groups must be a table of ranks, one row per group, but got shape {table.shape} of {table.dtype}; "
            "give groups of unequal size in separate calls"
        )
    low, high = int(table.min()), int(table.max())
    if low < 0 or high >= num_ranks:
        raise ClusterError(
            f"ranks of a group must be from 0 to {num_ranks - 1}, but they range from {low} to {high}; "
            "check the number of nodes"
        )
    return table.astype(np.int64)


def _refuse_twins(place: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64]) -> None:
    twins = place[:, 1:] == place[:, :-1]
    if twins.any():
        row, column = np.argwhere(twins)[0]
        raise ClusterError(
            f"members of a group must be on different GPUs, but ranks {ranks[row, column]} and "
            f"{ranks[row, column + 1]} share one; list every rank once"
        )
