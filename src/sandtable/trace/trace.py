"""Trace: what every rank of a run did, with one captured rank per class.

    trace = Trace.load("out/trace.sandtable")
    rank = trace.rank(1234)                     # the columns of its class, its own groups and peers
    for op in rank.operators(): ...             # (signature, stream, phase, line)
    for call in rank.collectives(): ...         # op, group, bytes, peer, line, ...

Loading reads a header; the columns of a class are read on demand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sandtable.errors import TraceError
from sandtable.trace.groups import Group, GroupTable
from sandtable.trace.interning import intern_records
from sandtable.trace.lines import Line
from sandtable.trace.observations import Observations
from sandtable.trace.records import Note, RankRecords, SharedTables
from sandtable.trace.signature import SignatureTable
from sandtable.trace.storage import FILE_NAME, VERSION, Content, RunFacts, StoredContent, write_trace
from sandtable.trace.view import RankClass, RankView

__all__ = ["FILE_NAME", "RunFacts", "Trace"]


class Trace:
    """A captured run. Made by `Trace.assemble` from captured ranks, or by `Trace.load` from a file."""

    def __init__(self, content: Content) -> None:
        self._content = content

    @classmethod
    def assemble(
        cls,
        records: Mapping[int, RankRecords],
        *,
        classes: Mapping[int, Sequence[int]],
        groups: Iterable[Group],
        run: RunFacts,
        observations: Mapping[int, Observations] | None = None,
    ) -> "Trace":
        """Assemble a trace from captured representatives.

        `classes` gives the members of each representative's class, including itself. `groups` are all groups of the run
        in creation order: the k-th of them that holds a rank is that rank's group number k. The number of steps is the
        largest of any rank; notes of the ranks follow those of `run`. `observations` are those of all captured ranks.
        """
        representatives = tuple(sorted(classes))
        class_of_rank = _class_of_rank(representatives, classes, records, run.world_size)
        shared, tables = intern_records([records[rank] for rank in representatives])
        run = replace(
            run,
            num_steps=max([run.num_steps, *(rank.num_steps for rank in shared)]),
            notes=tuple(dict.fromkeys([*run.notes, *(note for rank in shared for note in rank.notes)])),
            command=tuple(run.command),
            captured_ranks=tuple(sorted(int(rank) for rank in run.captured_ranks or records)),
        )
        content = _AssembledContent(
            run=run,
            representatives=representatives,
            class_of_rank=class_of_rank,
            groups=groups if isinstance(groups, GroupTable) else GroupTable(groups),
            tables=tables,
            shared=tuple(shared),
            observations=observations or {},
        )
        return cls(content)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Trace":
        """Open a trace file, or the file `trace.sandtable` in a directory."""
        return cls(StoredContent(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace to a file, or as `trace.sandtable` into a directory: all of it or nothing."""
        path = Path(path)
        write_trace(path / FILE_NAME if path.is_dir() else path, self._content)

    def __repr__(self) -> str:
        return f"Trace({self.world_size} ranks in {len(self.classes)} classes, {self.num_steps} steps)"

    @property
    def version(self) -> int:
        return VERSION

    @property
    def run(self) -> RunFacts:
        return self._content.run

    @property
    def world_size(self) -> int:
        return self.run.world_size

    @property
    def cluster(self) -> str:
        """The name of the cluster the run was captured for."""
        return self.run.cluster

    @property
    def gpus_per_node(self) -> int:
        return self.run.gpus_per_node

    @property
    def ranks_per_node(self) -> int:
        """The number of ranks started on each node: at most its GPUs."""
        return self.run.ranks_per_node or self.run.gpus_per_node

    @property
    def num_nodes(self) -> int:
        """The nodes that the ranks ran on."""
        return -(-self.run.world_size // self.ranks_per_node)

    @property
    def command(self) -> tuple[str, ...]:
        return self.run.command

    @property
    def num_steps(self) -> int:
        return self.run.num_steps

    @property
    def captured_ranks(self) -> tuple[int, ...]:
        """Every rank that ran, including those that only verified a class."""
        return self.run.captured_ranks

    @property
    def observations(self) -> Mapping[int, Observations]:
        """What was observed on each captured rank, for the rules of `check`; empty if nothing was."""
        return self._content.observations

    @property
    def wall_seconds(self) -> float:
        return self.run.wall_seconds

    @property
    def core_seconds(self) -> float:
        return self.run.core_seconds

    @property
    def peak_rss_bytes(self) -> int:
        return self.run.peak_rss_bytes

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the user should know; `line` of a note is an index into `lines`."""
        return self.run.notes

    @property
    def groups(self) -> GroupTable:
        """All groups of the run, in creation order."""
        return self._content.groups

    @property
    def signatures(self) -> SignatureTable:
        """Every signature of the run; `ref` of an operator is an index into it, in every class."""
        return self._content.tables.signatures

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every script line of the run; `line` is an index into it, in every class."""
        return self._content.tables.lines

    @cached_property
    def classes(self) -> tuple[RankClass, ...]:
        """Classes of ranks that did the same work, by representative."""
        owners = self._content.class_of_rank
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(self._content.representatives) + 1))
        return tuple(
            RankClass(
                rank, tuple(order[bounds[index] : bounds[index + 1]].tolist()), partial(self._content.records, index)
            )
            for index, rank in enumerate(self._content.representatives)
        )

    def class_of(self, rank: int) -> RankClass:
        """Return the class that `rank` belongs to."""
        owners = self._content.class_of_rank
        if not 0 <= rank < len(owners):
            raise TraceError(f"rank must be between 0 and {len(owners) - 1}, but got {rank}; choose one of this run")
        index = int(owners[rank])
        if index < 0:
            raise TraceError(
                f"rank must belong to a captured class, but rank {rank} does not; capture the run with --ranks auto, "
                f"or name {rank} in --ranks"
            )
        return self.classes[index]

    def rank(self, rank: int) -> RankView:
        """Return a view of what `rank` did."""
        return RankView(rank, self.class_of(rank), self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AssembledContent:
    """The content of a newly assembled trace, all in memory."""

    run: RunFacts
    representatives: tuple[int, ...]
    class_of_rank: npt.NDArray[np.int32]
    groups: GroupTable
    tables: SharedTables
    shared: tuple[RankRecords, ...]
    observations: Mapping[int, Observations]

    def records(self, index: int) -> RankRecords:
        return self.shared[index]


def _class_of_rank(
    representatives: Sequence[int],
    classes: Mapping[int, Sequence[int]],
    records: Mapping[int, RankRecords],
    world_size: int,
) -> npt.NDArray[np.int32]:
    owners = np.full(world_size, -1, dtype=np.int32)
    for index, representative in enumerate(representatives):
        members = np.asarray(classes[representative], dtype=np.int64)
        if representative not in records or representative not in members:
            raise TraceError(
                f"a representative must be captured and be in its class, but rank {representative} is not; "
                "give its records, and name it among the members"
            )
        if members.min() < 0 or members.max() >= world_size or (owners[members] >= 0).any():
            raise TraceError(
                f"each rank below the world size ({world_size}) must be in one class at most, but the class of rank "
                f"{representative} holds others; name every rank once"
            )
        owners[members] = index
    return owners
