"""Version rules: which weights a minibatch uses in each stage. Plain arithmetic, no tensors.

A version is the number of updates a stage has made. In the steady state a rank of stage s has W minibatches in flight
(`StageLayout.in_flight`): the forward pass of its i-th minibatch follows the backward pass of its (i - W)-th. With r
ranks that take turns, minibatch b is the (b // r)-th of its rank, and an update is made of r minibatches, so

    version of minibatch b in stage s   =   max(0, b // r - W + 1 - d)

With n stages of one rank each, d = 0 and stage k of 1..n has W = n - k + 1, which gives PipeDream's
w(t+1) = w(t) - lr * grad f(w_1(t-n+1), w_2(t-n+2), ..., w_n(t)). Where replicas average their gradients, d = 1: a
round is settled after the backward pass of the next one. Otherwise the first replica would wait in every round for the
last one to finish, and for the mean to arrive. (A single stage is plain data parallelism: all replicas finish at the
same time, and d = 0.)
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import lcm

from sandtable.methods.pipeline.layout import StageLayout

__all__ = ["Stashing", "TwoVersions", "VersionRule", "VerticalSync"]


@dataclass(frozen=True, slots=True)
class VersionRule(ABC):
    """Versions and updates count from the last time the pipeline was empty."""

    layout: StageLayout

    @abstractmethod
    def per_update(self, stage: int) -> int:
        """Return how many consecutive minibatches, over all replicas, make one update of the stage."""

    @abstractmethod
    def delay(self, stage: int) -> int:
        """Return how many updates replicas may still be averaging when a backward pass has ended."""

    @abstractmethod
    def version(self, stage: int, minibatch: int) -> int:
        """Return the version that both passes of the minibatch use in the stage."""

    @abstractmethod
    def versions_held(self, stage: int) -> int:
        """Return the largest number of versions that a rank of the stage holds, the latest included."""


class Stashing(VersionRule):
    """Each stage uses its latest weights for the forward pass, and keeps them for the backward pass."""

    def per_update(self, stage: int) -> int:
        return self.layout.replicas[stage]

    def delay(self, stage: int) -> int:
        return int(self.layout.replicas[stage] > 1 and self.layout.num_stages > 1)

    def version(self, stage: int, minibatch: int) -> int:
        behind = self.layout.in_flight(stage) - 1 + self.delay(stage)
        return max(0, minibatch // self.layout.replicas[stage] - behind)

    def versions_held(self, stage: int) -> int:
        return self.layout.in_flight(stage)


class VerticalSync(Stashing):
    """All stages use the weights that the input stage had when the minibatch entered.

    Those include the updates of the first c minibatches, c = r_0 * version in stage 0. Another stage uses its newest
    version that includes no others: c // r. With equal replicas that is the same version everywhere.
    """

    def version(self, stage: int, minibatch: int) -> int:
        known = self.layout.replicas[0] * Stashing.version(self, 0, minibatch)
        return known // self.layout.replicas[stage]

    def versions_held(self, stage: int) -> int:
        """Count from the version of the oldest minibatch in flight to the latest."""
        own, width = self.layout.replicas[stage], self.layout.in_flight(stage)
        period = lcm(own, self.layout.replicas[0])
        steady = 4 * period * self.layout.num_ranks

        def held(minibatch: int) -> int:
            latest = Stashing.version(self, stage, minibatch)
            return latest - self.version(stage, minibatch - (width - 1) * own) + 1

        return max(held(minibatch) for minibatch in range(steady, steady + period))


@dataclass(frozen=True, slots=True)
class TwoVersions(VersionRule):
    """PipeDream-2BW: batch t of `micro_batches` uses version t - 1 in all stages, w(t+1) = w(t) - lr * grad f(w(t-1)).

    Version t - 1 must exist when batch t begins: micro_batches >= (W - 1) * r in every stage.
    """

    micro_batches: int

    def per_update(self, stage: int) -> int:
        return self.micro_batches

    def delay(self, stage: int) -> int:
        return 1

    def version(self, stage: int, minibatch: int) -> int:
        return max(0, minibatch // self.micro_batches - 1)

    def versions_held(self, stage: int) -> int:
        return 2
