"""Partitions: assign layers to machines so that the slowest stage of the pipeline is as fast as possible.

This is PipeDream's dynamic programme. A stage is a run of layers on m machines that share its minibatches; it takes

    T(i..j, m) = max(sum of times, 4 (m - 1) / m * weight bytes / bandwidth) / m        seconds per minibatch

since m machines work on m minibatches at a time while keeping their weights equal. Between two stages, 2 * the bytes
that cross (activations forward, gradients backward) are sent while the stages compute. The best split of the first j
layers on m machines follows from those of fewer layers on fewer machines:

    A(j, m) = min over i, m' of max(A(i, m - m'), 2 * bytes that cross after i / bandwidth, T(i+1..j, m'))

With several levels (machines of several devices), each machine of a stage splits its layers by the same rule: A of the
level below takes the place of the sum of times.

Memory: a device keeps one version of weights and activations for every minibatch it has in flight, which are
ceil(devices from here to the end / devices of the stage), and the gradients. Splits that do not fit are not considered.
So a machine's devices must also leave room for minibatches in flight in the stages of the machines after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, isinf, prod

import numpy as np
import numpy.typing as npt

from sandtable.errors import PlanError
from sandtable.planner.chain import Chain

__all__ = ["Level", "Partition", "Stage", "partition"]

Floats = npt.NDArray[np.float64]

_NOTHING = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Machines (or devices in a machine), each with a link of this bandwidth."""

    machines: int
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise PlanError(f"a level must have at least one machine, but got {self.machines}")
        if not self.bandwidth_bytes_per_s > 0:
            raise PlanError(f"bandwidth must be more than 0 bytes per second, but got {self.bandwidth_bytes_per_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers `first` to `last`, both included, on `replicas` machines."""

    first: int
    last: int
    replicas: int
    seconds: float
    """Per minibatch, with all replicas at work."""
    inside: "Partition | None" = None
    """How each machine splits the stage, if it has several devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The stages, and what is known about the pipeline before it runs."""

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
        """Return whether every device has all layers: one stage, and one stage inside each machine."""
        inside = self.stages[0].inside
        return len(self.stages) == 1 and (inside is None or inside.is_data_parallel)

    @property
    def in_flight(self) -> int:
        """Minibatches an input device has in flight in the steady state (PipeDream's NOAM)."""
        return self.versions(0)

    @property
    def minibatches_per_s(self) -> float:
        return 1 / self.seconds_per_minibatch if self.seconds_per_minibatch else float("inf")

    def versions(self, stage: int) -> int:
        """Return how many versions of its weights an input device of the stage keeps."""
        here, after = self.stages[stage], sum(later.replicas for later in self.stages[stage + 1 :])
        return ceil((here.replicas + after) * _devices(here.inside) / (here.replicas * _input_devices(here.inside)))


def partition(chain: Chain, levels: Sequence[Level], *, memory_bytes: float | None = None) -> Partition:
    """Return the best split of `chain`; `levels` go from the innermost (devices of a machine) to the outermost.

    All machines are used. Of equally fast splits, the one with the longest last stages is taken.
    """
    if not levels:
        raise PlanError("a model must be split over at least one level of machines, but no level was given")
    total = prod(level.machines for level in levels)
    sums = _Sums.of(chain)
    room = memory_bytes if memory_bytes is not None and not memory_bytes >= sums.most_bytes(total) else None
    planner = None
    for level in levels:
        planner = _Planner(sums, level, planner, room)
    assert planner is not None
    table = planner.table(range(1), behind=_NOTHING)
    if isinf(table.best[-1, 0, -1]):
        raise PlanError(
            f"a stage must fit into the memory of a device ({memory_bytes:,.0f} bytes), but no split over {total} "
            "devices does; use more devices or a smaller minibatch, or recompute activations"
        )
    return table.partition(len(chain))


def _devices(inside: Partition | None) -> int:
    """Return the devices of a machine."""
    return 1 if inside is None else inside.machines * _devices(inside.stages[0].inside)


def _input_devices(inside: Partition | None) -> int:
    """Return the devices at which minibatches enter a machine."""
    return 1 if inside is None else inside.stages[0].replicas * _input_devices(inside.stages[0].inside)


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Sums over the first k layers, and the bytes that cross between them and the rest, both ways."""

    seconds: Floats
    weights: Floats
    activations: Floats
    crossing: Floats

    @classmethod
    def of(cls, chain: Chain) -> "_Sums":
        return cls(
            _summed([layer.seconds for layer in chain.layers]),
            _summed([float(layer.weight_bytes) for layer in chain.layers]),
            _summed([float(layer.activation_bytes) for layer in chain.layers]),
            2 * np.concatenate(([0.0], np.array(chain.cut_bytes, dtype=np.float64))),
        )

    def most_bytes(self, versions: int) -> float:
        """Return the bytes of all layers on one device with `versions` in flight: more is never needed."""
        weights, activations = float(self.weights[-1]), float(self.activations[-1])
        return versions * (weights + activations) + weights


def _summed(values: Sequence[float]) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))


class _Planner:
    """Splits layers over the machines of one level; inside each machine, the planner of the level below splits them."""

    def __init__(self, sums: _Sums, level: Level, inner: "_Planner | None", memory_bytes: float | None) -> None:
        self.sums, self.level, self.inner, self.memory_bytes = sums, level, inner, memory_bytes
        self._seconds: dict[Fraction, Floats] = {}

    def table(self, firsts: range, *, behind: Fraction) -> "_Table":
        """Fill a table for spans that begin with one of `firsts`; `behind` are machines of this level after its own."""
        table = _Table(self, firsts, behind)
        table.fill()
        return table

    def seconds(self, behind: Fraction) -> Floats:
        """Return the seconds per minibatch of layers i to j (exclusive) on all machines of the level."""
        if behind not in self._seconds:
            table = self.table(range(len(self.sums.seconds) - 1), behind=behind)
            self._seconds[behind] = table.best[-1].copy()
        return self._seconds[behind]

    def data_parallel_seconds(self, first: int, end: int) -> float:
        """Return the seconds per minibatch with these layers on every device."""
        if self.inner is None:
            single = float(self.sums.seconds[end] - self.sums.seconds[first])
        else:
            single = self.inner.data_parallel_seconds(first, end)
        return self.shared(single, first, end, self.level.machines)

    def shared(self, single: float, first: int, end: int, replicas: int) -> float:
        """Return the seconds of layers that `replicas` machines share, if one machine takes `single`."""
        weights = float(self.sums.weights[end] - self.sums.weights[first])
        return max(single, 4 * (replicas - 1) / replicas * weights / self.level.bandwidth_bytes_per_s) / replicas


class _Table:
    """A(j, m) for one level, by first layer: `best[m, first, j]`."""

    def __init__(self, planner: _Planner, firsts: range, behind: Fraction) -> None:
        self._planner, self._firsts, self._behind = planner, firsts, behind
        self._machines = planner.level.machines
        self._replicas = np.arange(1, self._machines + 1)[:, None]
        self._is_limited = planner.memory_bytes is not None
        self.best = np.full((self._machines + 1, len(firsts), len(planner.sums.seconds)), np.inf)
        self.best[0, range(len(firsts)), firsts] = 0.0

    def fill(self) -> None:
        """Fill in the best split for all layers and all numbers of machines."""
        for end in range(self._firsts.start + 1, self.best.shape[2]):
            rows = min(end - self._firsts.start, len(self._firsts))
            # The number of machines after a stage matters inside it only if memory is limited.
            stages = None if self._is_limited and self._planner.inner else self._last_stages(end, self._machines)
            most = self._most_versions(end)
            for used in range(1, self._machines + 1):
                given = self._last_stages(end, used) if stages is None else stages[:used]
                options = self._options(end, used, self._that_fit(given, most, used))
                self.best[used, :rows, end] = options.min(axis=0).min(axis=1)

    def _options(self, end: int, used: int, last_stages: Floats) -> Floats:
        """Return the seconds of the slowest stage, for the layers to `end` on `used` machines.

        Indexed by machines of the last stage, first layer of all, and first layer of the last stage.
        """
        rows = min(end - self._firsts.start, len(self._firsts))
        before = self.best[used - 1 :: -1, :rows, self._firsts.start : end]
        crossing = self._planner.sums.crossing[self._firsts.start : end] / self._planner.level.bandwidth_bytes_per_s
        options: Floats = np.maximum(np.maximum(last_stages, crossing)[:, None, :], before)
        options[-1, range(rows), range(rows)] = last_stages[-1, :rows]  # one stage alone: nothing crosses into it
        return options

    def _last_stages(self, end: int, used: int) -> Floats:
        """Return the seconds of the last stage on `used` machines, by its machines and its first layer."""
        sums, bandwidth = self._planner.sums, self._planner.level.bandwidth_bytes_per_s
        replicas = self._replicas[:used]
        weights = sums.weights[end] - sums.weights[self._firsts.start : end]
        sharing = 4 * (replicas - 1) / replicas * weights / bandwidth
        seconds: Floats = np.maximum(self._compute(end, used), sharing) / replicas
        return seconds

    def _compute(self, end: int, used: int) -> Floats:
        """Return the seconds on one machine by first layer, and by machines of the stage if memory is limited."""
        inner, sums, starts = self._planner.inner, self._planner.sums, slice(self._firsts.start, end)
        if inner is None:
            seconds: Floats = sums.seconds[end] - sums.seconds[starts]
            return seconds
        if not self._is_limited:
            return inner.seconds(_NOTHING)[starts, end]
        counts = range(1, used + 1)
        return np.array([inner.seconds(self._behind_inside(count, used))[starts, end] for count in counts])

    def _that_fit(self, last_stages: Floats, most_versions: Floats | None, used: int) -> Floats:
        """Rule out stages that keep too many versions: ceil((replicas + machines after) / replicas) of them."""
        if most_versions is None:
            return last_stages
        behind = self._machines - used + self._behind
        replicas = self._replicas[:used] * behind.denominator
        versions = -(-(replicas + behind.numerator) // replicas)
        return np.where(versions <= most_versions, last_stages, np.inf)

    def _most_versions(self, end: int) -> Floats | None:
        """Return how many versions a device has room for, by first layer of the last stage; None: no limit here."""
        room, sums, starts = self._planner.memory_bytes, self._planner.sums, slice(self._firsts.start, end)
        if room is None or self._planner.inner is not None:
            return None
        weights = sums.weights[end] - sums.weights[starts]
        kept = weights + (sums.activations[end] - sums.activations[starts])
        divisor = np.where(kept > 0, kept, 1.0)
        most = np.floor((room - weights) / divisor)
        most -= most * divisor + weights > room  # a quotient that was rounded up to a whole number
        return np.where(kept > 0, most, np.inf if room >= 0 else 0.0)

    def _behind_inside(self, replicas: int, used: int) -> Fraction:
        """Return how many machines of the level below come after those of one machine of the last stage."""
        inner = self._planner.inner
        if inner is None or not self._is_limited:
            return _NOTHING
        behind = (self._machines - used + self._behind) * inner.level.machines / replicas
        return behind if inner.inner else Fraction(ceil(behind))  # versions of a device are whole: as many either way

    def partition(self, end: int) -> Partition:
        """Return the split of all layers from the first of `firsts` to `end` over all machines of the level."""
        planner, first, machines = self._planner, self._firsts.start, self._machines
        stages: list[Stage] = []
        at, used = end, machines
        while at > first:
            given = self._that_fit(self._last_stages(at, used), self._most_versions(at), used)
            row, column = divmod(int(self._options(at, used, given)[:, 0, :].T.argmin()), used)
            stages.append(self._stage(first + row, at, column + 1, used))
            at, used = first + row, used - column - 1
        stages.reverse()
        weights = float(planner.sums.weights[end] - planner.sums.weights[first])
        return Partition(
            stages=tuple(stages),
            seconds_per_minibatch=float(self.best[machines, 0, end]),
            bytes_per_minibatch=sum(self._bytes(stage, is_first=stage is stages[0]) for stage in stages),
            single_seconds=self._single_seconds(first, end, _NOTHING),
            data_parallel_seconds=planner.data_parallel_seconds(first, end),
            data_parallel_bytes=2 * (machines - 1) / machines * weights,
        )

    def _stage(self, start: int, end: int, replicas: int, used: int) -> Stage:
        behind, inner = self._behind_inside(replicas, used), self._planner.inner
        seconds = self._planner.shared(self._single_seconds(start, end, behind), start, end, replicas)
        inside = None if inner is None else inner.table(range(start, start + 1), behind=behind).partition(end)
        return Stage(first=start, last=end - 1, replicas=replicas, seconds=seconds, inside=inside)

    def _single_seconds(self, start: int, end: int, behind: Fraction) -> float:
        """Return the seconds of these layers on one machine."""
        inner, sums = self._planner.inner, self._planner.sums
        return float(sums.seconds[end] - sums.seconds[start] if inner is None else inner.seconds(behind)[start, end])

    def _bytes(self, stage: Stage, *, is_first: bool) -> float:
        """Return the bytes into the stage and back, and among its replicas, which exchange all but their own share."""
        sums = self._planner.sums
        weights = float(sums.weights[stage.last + 1] - sums.weights[stage.first])
        crossing = 0.0 if is_first else float(sums.crossing[stage.first])
        return crossing + 2 * (stage.replicas - 1) / stage.replicas * weights
