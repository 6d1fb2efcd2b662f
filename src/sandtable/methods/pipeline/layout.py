"""Stage layouts: which rank holds which stage, and whose turn it is.

Picture a canteen with counters in a row: every tray passes all of them in order. A slow counter has several people, who
take trays in turn, and a tray goes back past the person it came by (1F1B-RR):

    replicas (2, 1, 1)      place 0: ranks 0 and 1      place 1: rank 2      place 2: rank 3
    minibatch 0, 2, 4, ...           rank 0
    minibatch 1, 3, 5, ...           rank 1

With more stages than places (interleaved), minibatches walk the row several times: stage s is at place s mod places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from sandtable.errors import MethodError

__all__ = ["StageLayout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayout:
    """`replicas[place]` consecutive ranks hold the stages of each place; ranks are numbered place by place."""

    replicas: tuple[int, ...]
    num_stages: int
    global_ranks: tuple[int, ...] = ()
    """The ranks' numbers in the whole job, if the pipeline is only a part of it."""

    @classmethod
    def of(
        cls, *, num_stages: int, num_ranks: int, replicas: Sequence[int] | None, is_interleaved: bool
    ) -> "StageLayout":
        """Return the layout, by default with one rank per place; refuse what does not fit together."""
        if num_stages < 1:
            raise MethodError(
                "a pipeline must have at least one stage, but got none; cut the model: cut(model, inputs, boundaries)"
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
                f"each stage must have its own rank, but there are {num_stages} stages on {num_ranks} ranks; "
                f"cut the model into {num_ranks} stages or fewer, or use schedule=Interleaved(...)"
            )
        if replicas is None and num_stages != num_ranks:
            example = (num_ranks - num_stages + 1, *[1] * (num_stages - 1))
            raise MethodError(
                f"replicas must give the number of ranks per stage when there are more ranks ({num_ranks}) than "
                f"stages ({num_stages}), but got None; try replicas={example}"
            )
        counts = tuple(replicas) if replicas is not None else (1,) * num_stages
        _check_counts(counts, num_stages, num_ranks)
        return cls(replicas=counts, num_stages=num_stages)

    @classmethod
    def _interleaved(cls, num_stages: int, num_ranks: int, replicas: Sequence[int] | None) -> "StageLayout":
        counts = tuple(replicas) if replicas is not None else (1,) * num_ranks
        _check_counts(counts, len(counts), num_ranks)
        if num_stages % len(counts) or num_stages < 2 * len(counts):
            raise MethodError(
                f"each of the {len(counts)} places must have the same number of interleaved stages, at least two, but "
                f"there are {num_stages} stages; cut the model into {2 * len(counts)}, or use Flush(...)"
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
        """Return the ranks that hold the stage."""
        place = stage % self.num_places
        first = sum(self.replicas[:place])
        return range(first, first + self.replicas[place])

    def seat(self, rank: int) -> tuple[int, int]:
        """Return place and replica of a rank."""
        place = next(place for place in range(self.num_places) if rank in self.ranks(place))
        return place, rank - self.ranks(place).start

    def stages(self, rank: int) -> range:
        """Return the stages that a rank holds."""
        return range(self.seat(rank)[0], self.num_stages, self.num_places)

    def rank_for(self, stage: int, minibatch: int) -> int:
        """Return the rank that works on the minibatch in that stage; replicas take turns."""
        ranks = self.ranks(stage)
        return ranks[minibatch % len(ranks)]

    def next_turn(self, rank: int, stage: int, minibatch: int) -> int:
        """Return the first minibatch, from `minibatch` on, that the rank works on in the stage."""
        ranks = self.ranks(stage)
        return minibatch + (rank - ranks.start - minibatch) % len(ranks)

    def column(self, rank: int) -> list[int]:
        """Return the ranks of the rank's own pipeline; there are as many pipelines as replicas, which must be equal."""
        replica = self.seat(rank)[1]
        return [self.ranks(place)[replica] for place in range(self.num_places)]

    def in_flight(self, stage: int) -> int:
        """Return how many minibatches a rank of the stage has in flight in the steady state; for stage 0, the NOAM."""
        own = self.replicas[stage]
        return ceil(sum(self.replicas[stage:]) / own)

    def name(self, rank: int) -> str:
        """Return the rank's name in error messages."""
        stages = list(self.stages(rank))
        held = f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
        place, replica = self.seat(rank)
        number = self.global_ranks[rank] if self.global_ranks else rank
        return f"rank {number} ({held}{f', replica {replica}' if self.replicas[place] > 1 else ''})"


def _check_counts(counts: tuple[int, ...], num_stages: int, num_ranks: int) -> None:
    if len(counts) != num_stages:
        raise MethodError(f"replicas must give a number of ranks for each of the {num_stages} stages, but got {counts}")
    if min(counts) < 1:
        raise MethodError(f"each stage must have at least one rank, but replicas are {counts}")
    if sum(counts) != num_ranks:
        raise MethodError(
            f"replicas must add up to the ranks of the group ({num_ranks}), but {counts} add up to {sum(counts)}; "
            "start that many ranks, or change the replicas"
        )
