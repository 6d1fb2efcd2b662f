"""Layout: which rank holds which stage, and whose turn it is.

A canteen with counters in a row: every tray passes all of them in order. A slow counter has several people, who take
the trays in turn, and a tray goes back past the same person it came by (1F1B-RR):

    replicas (2, 1, 1)      place 0: ranks 0 and 1      place 1: rank 2      place 2: rank 3
    minibatch 0, 2, 4, ...           rank 0
    minibatch 1, 3, 5, ...           rank 1

With more stages than places (interleaved) the row is walked several times: stage s is at place s mod places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from sandtable.errors import MethodError

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`replicas[place]` ranks in a row hold the stages of each place; ranks are numbered place by place."""

    replicas: tuple[int, ...]
    num_stages: int
    global_ranks: tuple[int, ...] = ()
    """What the ranks are called in the whole job, if the pipeline is a part of it."""

    @classmethod
    def of(cls, *, num_stages: int, num_ranks: int, replicas: Sequence[int] | None, is_interleaved: bool) -> "Layout":
        """The layout asked for, or one rank a place; refused if stages, replicas and ranks do not fit together."""
        if num_stages < 1:
            raise MethodError(
                "a pipeline must have a stage or more, but got none; cut the model: cut(model, inputs, boundaries)"
            )
        if isinstance(replicas, int):
            raise MethodError(
                f"replicas must give a number of ranks for each of the {num_stages} stages, but got {replicas}; try "
                f"replicas={(replicas,) * num_stages}"
            )
        if is_interleaved:
            return cls._interleaved(num_stages, num_ranks, replicas)
        if num_stages > num_ranks:
            raise MethodError(
                f"each stage must have a rank of its own, but there are {num_stages} stages on {num_ranks} ranks; "
                f"cut the model into {num_ranks} stages or fewer, or take schedule=Interleaved(...)"
            )
        if replicas is None and num_stages != num_ranks:
            example = (num_ranks - num_stages + 1, *[1] * (num_stages - 1))
            raise MethodError(
                f"replicas must say how many ranks hold each stage when there are more ranks ({num_ranks}) than "
                f"stages ({num_stages}), but there are none; try replicas={example}"
            )
        counts = tuple(replicas) if replicas is not None else (1,) * num_stages
        _check_counts(counts, num_stages, num_ranks)
        return cls(replicas=counts, num_stages=num_stages)

    @classmethod
    def _interleaved(cls, num_stages: int, num_ranks: int, replicas: Sequence[int] | None) -> "Layout":
        counts = tuple(replicas) if replicas is not None else (1,) * num_ranks
        _check_counts(counts, len(counts), num_ranks)
        if num_stages % len(counts) or num_stages < 2 * len(counts):
            raise MethodError(
                f"interleaved stages must be two or more for each of the {len(counts)} places, the same number for "
                f"all, but there are {num_stages} stages; cut the model into {2 * len(counts)}, or take Flush(...)"
            )
        return cls(replicas=counts, num_stages=num_stages)

    @property
    def num_places(self) -> int:
        return len(self.replicas)

    @property
    def num_ranks(self) -> int:
        return sum(self.replicas)

    @property
    def has_equal_replicas(self) -> bool:
        return len(set(self.replicas)) == 1

    def ranks(self, stage: int) -> range:
        """The ranks that hold the stage."""
        place = stage % self.num_places
        first = sum(self.replicas[:place])
        return range(first, first + self.replicas[place])

    def seat(self, rank: int) -> tuple[int, int]:
        """Place and replica of a rank."""
        place = next(place for place in range(self.num_places) if rank in self.ranks(place))
        return place, rank - self.ranks(place).start

    def stages(self, rank: int) -> range:
        """The stages a rank holds."""
        return range(self.seat(rank)[0], self.num_stages, self.num_places)

    def rank_for(self, stage: int, minibatch: int) -> int:
        """Who works on the minibatch in that stage: replicas take turns."""
        ranks = self.ranks(stage)
        return ranks[minibatch % len(ranks)]

    def next_turn(self, rank: int, stage: int, minibatch: int) -> int:
        """The first minibatch from that one on which the rank works on in the stage."""
        ranks = self.ranks(stage)
        return minibatch + (rank - ranks.start - minibatch) % len(ranks)

    def column(self, rank: int) -> list[int]:
        """The ranks of one pipeline, of which there are as many as replicas; only where those are equal."""
        replica = self.seat(rank)[1]
        return [self.ranks(place)[replica] for place in range(self.num_places)]

    def in_flight(self, stage: int) -> int:
        """Minibatches that a rank of the stage has under way in the steady state; of the first stage, the NOAM."""
        own = self.replicas[stage]
        return ceil(sum(self.replicas[stage:]) / own)

    def name(self, rank: int) -> str:
        """A rank, as errors call it."""
        stages = list(self.stages(rank))
        held = f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
        place, replica = self.seat(rank)
        called = self.global_ranks[rank] if self.global_ranks else rank
        return f"rank {called} ({held}{f', replica {replica}' if self.replicas[place] > 1 else ''})"


def _check_counts(counts: tuple[int, ...], num_stages: int, num_ranks: int) -> None:
    if len(counts) != num_stages:
        raise MethodError(f"replicas must give a number of ranks for each of the {num_stages} stages, but got {counts}")
    if min(counts) < 1:
        raise MethodError(f"each stage must have one rank or more, but replicas are {counts}")
    if sum(counts) != num_ranks:
        raise MethodError(
            f"replicas must add up to the ranks of the group ({num_ranks}), but {counts} add up to {sum(counts)}; "
            "start as many ranks, or change the replicas"
        )
