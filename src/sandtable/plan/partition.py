"""The partition: which layers go on which machines, so that the slowest stage of the pipeline is as fast as can be.

PipeDream's dynamic programme. A stage is a run of layers on m machines that share its minibatches; it takes

    T(i..j, m) = max(sum of times, 4 (m - 1) / m * weight bytes / bandwidth) / m        seconds a minibatch

since m minibatches are worked on at a time, and their weights are kept equal meanwhile. Between two stages 2 * the
bytes that cross (activations forward, gradients backward) take time as well, beside the computing. The best split of
the first j layers on m machines follows from those of fewer layers on fewer machines:

    A(j, m) = min over i, m' of max(A(i, m - m'), 2 * bytes that cross behind i / bandwidth, T(i+1..j, m'))

With several levels (machines of several devices) a stage on m machines of the upper level is, inside each, split by the
same rule: A of the level below takes the place of the sum of times.

Memory: a stage keeps one version of its weights and activations for every minibatch it has in flight, as many as
ceil(machines from here to the end / machines of the stage), and the gradients. What does not fit is not considered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, isinf, prod

import numpy as np
import numpy.typing as npt

from sandtable.errors import PlanError
from sandtable.plan.chain import Chain

__all__ = ["Level", "Partition", "Stage", "partition"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """So many machines (or devices in a machine), joined by links of that bandwidth each."""

    machines: int
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise PlanError(f"a level must have at least one machine, but got {self.machines}")
        if not self.bandwidth_bytes_per_s > 0:
            raise PlanError(f"bandwidth must be more than 0 bytes a second, but got {self.bandwidth_bytes_per_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers `first` to `last`, both included, on `replicas` machines."""

    first: int
    last: int
    replicas: int
    seconds: float
    """A minibatch, all replicas together."""
    inside: "Partition | None" = None
    """How each of the machines splits it, if a machine has several devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The stages, and what can be said about the pipeline before it runs."""

    stages: tuple[Stage, ...]
    seconds_per_minibatch: float
    bytes_per_minibatch: float
    """On the wire between machines: activations and gradients over the cuts, weights among replicas."""
    single_seconds: float = field(repr=False)
    data_parallel_seconds: float = field(repr=False)
    data_parallel_bytes: float = field(repr=False)

    @property
    def name(self) -> str:
        """Machines by stage: 7-1; one number is plain data parallelism."""
        return "-".join(str(stage.replicas) for stage in self.stages)

    @property
    def machines(self) -> int:
        return sum(stage.replicas for stage in self.stages)

    @property
    def is_data_parallel(self) -> bool:
        return len(self.stages) == 1

    @property
    def in_flight(self) -> int:
        """Minibatches an input replica has under way in the steady state (PipeDream's NOAM)."""
        return ceil(self.machines / self.stages[0].replicas)

    @property
    def minibatches_per_s(self) -> float:
        return 1 / self.seconds_per_minibatch if self.seconds_per_minibatch else float("inf")

    def versions(self, stage: int) -> int:
        """Versions of its weights that a machine of the stage keeps."""
        return _versions(self.stages[stage].replicas, sum(each.replicas for each in self.stages[stage + 1 :]))


def partition(chain: Chain, levels: Sequence[Level], *, memory_bytes: float | None = None) -> Partition:
    """The best split of `chain`; `levels` from the innermost (devices of a machine) to the outermost.

    All machines are used. Of equally fast splits the one whose last stages are longest is taken.
    """
    if not levels:
        raise PlanError("there must be machines to split a model over, but no level was given")
    total = prod(level.machines for level in levels)
    inner: _Spans = _Spans.of_one_device(chain)
    for level in levels[:-1]:
        inner = _Spans.of_level(chain, level, inner, memory_bytes=memory_bytes, machines_outside=total)
    table = _Table(chain, levels[-1], inner, memory_bytes)
    seconds = table.fill(0)
    if isinf(seconds):
        raise PlanError(
            f"a stage must fit into the memory of a device ({memory_bytes:,.0f} bytes), but no split over {total} "
            "devices does; take more devices, a smaller minibatch, or recompute activations"
        )
    return table.partition(0, len(chain))


def _versions(replicas: int, behind: int) -> int:
    return ceil((replicas + behind) / replicas)


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Layers i to j (exclusive) on one machine of the level below: seconds a minibatch, and how it is split there."""

    seconds: Floats
    tables: "tuple[_Table, ...]" = ()
    """By first layer; none where a machine is one device."""

    @classmethod
    def of_one_device(cls, chain: Chain) -> "_Spans":
        done = np.concatenate(([0.0], np.cumsum([layer.seconds for layer in chain.layers])))
        return cls(done[None, :] - done[:, None])

    @classmethod
    def of_level(
        cls, chain: Chain, level: Level, inner: "_Spans", *, memory_bytes: float | None, machines_outside: int
    ) -> "_Spans":
        """Every span split over all machines of the level."""
        count = len(chain)
        seconds = np.full((count + 1, count + 1), np.inf)
        tables = []
        for first in range(count):
            table = _Table(chain, level, inner, memory_bytes)
            table.fill(first)
            seconds[first] = table.best[:, level.machines]
            tables.append(table)
        return cls(seconds, tuple(tables))


class _Table:
    """A(j, m) for one level, from one first layer on."""

    def __init__(self, chain: Chain, level: Level, inner: _Spans, memory_bytes: float | None) -> None:
        self._chain = chain
        self._level = level
        self._inner = inner
        self._memory_bytes = memory_bytes
        count, machines = len(chain), level.machines
        self._weights = np.concatenate(([0.0], np.cumsum([float(layer.weight_bytes) for layer in chain.layers])))
        self._activations = np.concatenate(([0.0], np.cumsum([float(each.activation_bytes) for each in chain.layers])))
        self._crossing = 2 * np.concatenate(([0.0], np.array(chain.cut_bytes, dtype=np.float64)))
        self.best = np.full((count + 1, machines + 1), np.inf)

    def fill(self, first: int) -> float:
        """The best for all layers from `first` on and all machines."""
        self.best[first, 0] = 0.0
        for end in range(first + 1, len(self._chain) + 1):
            last_stage = self._last_stage(first, end)
            for used in range(1, self._level.machines + 1):
                self.best[end, used] = self._options(first, end, used, last_stage).min()
        return float(self.best[-1, -1])

    def _last_stage(self, first: int, end: int) -> Floats:
        """Its seconds and those of what crosses into it, by first layer and machines; no split before changes them."""
        bandwidth, replicas = self._level.bandwidth_bytes_per_s, np.arange(1, self._level.machines + 1)
        compute = self._inner.seconds[first:end, end][:, None]
        weights = (self._weights[end] - self._weights[first:end])[:, None]
        seconds = np.maximum(compute, 4 * (replicas - 1) / replicas * weights / bandwidth) / replicas
        crossing = self._crossing[first:end, None] / bandwidth
        crossing[0] = 0.0
        slower: Floats = np.maximum(seconds, crossing)
        return slower

    def _options(self, first: int, end: int, used: int, last_stage: Floats) -> Floats:
        """The slowest stage of `first` to `end` on `used` machines, by first layer and machines of the last stage."""
        options: Floats = np.maximum(last_stage[:, :used], self.best[first:end, used - 1 :: -1])
        if self._memory_bytes is not None:
            options[~self._fits(first, end, used)] = np.inf
        return options

    def _fits(self, first: int, end: int, used: int) -> npt.NDArray[np.bool_]:
        replicas = np.arange(1, used + 1)
        versions = np.ceil((replicas + self._level.machines - used) / replicas)
        weights = (self._weights[end] - self._weights[first:end])[:, None]
        activations = (self._activations[end] - self._activations[first:end])[:, None]
        if self._inner.tables:  # the level below saw to it that its devices hold their parts
            return np.ones((end - first, used), dtype=np.bool_)
        fits: npt.NDArray[np.bool_] = versions * (weights + activations) + weights <= self._memory_bytes
        return fits

    def partition(self, first: int, end: int) -> Partition:
        """The split of layers `first` to `end` over all machines of the level."""
        stages: list[Stage] = []
        at, used = end, self._level.machines
        while at > first:
            row, column = divmod(int(self._options(first, at, used, self._last_stage(first, at)).argmin()), used)
            start, replicas = first + row, column + 1
            stages.append(self._stage(start, at, replicas))
            at, used = start, used - replicas
        stages.reverse()
        machines, bandwidth = self._level.machines, self._level.bandwidth_bytes_per_s
        weights = float(self._weights[end] - self._weights[first])
        single = float(self._inner.seconds[first, end])
        return Partition(
            stages=tuple(stages),
            seconds_per_minibatch=float(self.best[end, machines]),
            bytes_per_minibatch=sum(self._bytes(stage, is_first=stage is stages[0]) for stage in stages),
            single_seconds=single,
            data_parallel_seconds=max(single, 4 * (machines - 1) / machines * weights / bandwidth) / machines,
            data_parallel_bytes=2 * (machines - 1) / machines * weights,
        )

    def _stage(self, start: int, end: int, replicas: int) -> Stage:
        bandwidth = self._level.bandwidth_bytes_per_s
        weights = float(self._weights[end] - self._weights[start])
        seconds = (
            max(float(self._inner.seconds[start, end]), 4 * (replicas - 1) / replicas * weights / bandwidth) / replicas
        )
        inside = self._inner.tables[start].partition(start, end) if self._inner.tables else None
        return Stage(first=start, last=end - 1, replicas=replicas, seconds=seconds, inside=inside)

    def _bytes(self, stage: Stage, *, is_first: bool) -> float:
        """Into the stage and back, and among its replicas, which send and get all but their share of the weights."""
        weights = float(self._weights[stage.last + 1] - self._weights[stage.first])
        crossing = 0.0 if is_first else float(self._crossing[stage.first])
        return crossing + 2 * (stage.replicas - 1) / stage.replicas * weights
