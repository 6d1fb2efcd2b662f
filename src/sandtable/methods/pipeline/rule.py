"""Rules of weight versions: with which weights a minibatch meets each stage. Plain arithmetic, no tensors.

A version is the number of updates a stage has made. In the steady state a rank of stage s has W minibatches under way
(`Layout.in_flight`): it does the forward pass of its i-th one right after the backward pass of its (i - W)-th. With r
ranks that take turns, minibatch b is the (b // r)-th of its rank, and an update is made of r minibatches, so

    version of minibatch b in stage s   =   max(0, b // r - W + 1 - d)

With n stages of one rank each, d = 0 and stage k of 1..n has W = n - k + 1, which gives PipeDream's
w(t+1) = w(t) - lr * grad f(w_1(t-n+1), w_2(t-n+2), ..., w_n(t)). Where replicas average their gradients, d = 1: a
round is settled after the backward pass of the next one. Otherwise the first replica would stand still in every round
until the last one is through, and until the mean has come over the wire. (One stage alone is plain data parallelism:
there all are through at the same time, and d = 0.)
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import lcm

from sandtable.methods.pipeline.layout import Layout

__all__ = ["Rule", "Stashing", "TwoVersions", "VerticalSync"]


@dataclass(frozen=True, slots=True)
class Rule(ABC):
    """Versions and updates, counted from the last time the pipeline was empty."""

    layout: Layout

    @abstractmethod
    def per_update(self, stage: int) -> int:
        """Consecutive minibatches, of all replicas together, that make one update of the stage."""

    @abstractmethod
    def delay(self, stage: int) -> int:
        """Updates that may still be on their way among replicas when a backward pass has ended."""

    @abstractmethod
    def version(self, stage: int, minibatch: int) -> int:
        """The version that forward and backward pass of the minibatch use in the stage."""

    @abstractmethod
    def versions_held(self, stage: int) -> int:
        """As many versions as a rank of the stage ever holds, the latest included."""


class Stashing(Rule):
    """Each stage uses its latest weights, and keeps them for the backward pass."""

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

    Those know of the first c minibatches, c = r_0 * version in stage 0. Another stage takes its newest version that
    knows of no more than these: c // r. With equal replicas that is the same version everywhere.
    """

    def version(self, stage: int, minibatch: int) -> int:
        known = self.layout.replicas[0] * Stashing.version(self, 0, minibatch)
        return known // self.layout.replicas[stage]

    def versions_held(self, stage: int) -> int:
        """From that of the oldest minibatch under way to the latest, at most."""
        own, width = self.layout.replicas[stage], self.layout.in_flight(stage)
        period = lcm(own, self.layout.replicas[0])
        steady = 4 * period * self.layout.num_ranks

        def held(minibatch: int) -> int:
            latest = Stashing.version(self, stage, minibatch)
            return latest - self.version(stage, minibatch - (width - 1) * own) + 1

        return max(held(minibatch) for minibatch in range(steady, steady + period))


@dataclass(frozen=True, slots=True)
class TwoVersions(Rule):
    """PipeDream-2BW: batch t of `micro_batches` uses version t - 1 in all stages, w(t+1) = w(t) - lr * grad f(w(t-1)).

    Version t - 1 must be there when batch t begins: micro_batches >= (W - 1) * r in every stage.
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
