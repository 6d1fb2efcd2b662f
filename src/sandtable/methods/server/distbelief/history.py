"""The history of L-BFGS and the direction it gives: the two-loop recursion, on remote vectors.

Steps s and changes of the gradient y of the last m iterations approximate the inverse of the second derivative, H. With
ρ = 1 / (y · s), newest to oldest, then back:

    q ← g;    for the newest to the oldest:  α ← ρ (s · q),  q ← q − α y
    q ← γ q,  γ = (s · y) / (y · y) of the newest
              for the oldest to the newest:  β ← ρ (y · q),  q ← q + (α − β) s
    d = −q

Nocedal, "Updating Quasi-Newton Matrices with Limited Storage", 1980. Each dot product is needed before the next, so a
direction takes 2m + 1 short messages to every shard, one after the other, and 4m multiplications per component.
"""

from dataclasses import dataclass, field
from typing import Any

from sandtable.methods.server.distbelief.operations import Operation, add, copy, dot, scale
from sandtable.methods.server.distbelief.space import VectorSpace

__all__ = ["LBFGSHistory"]


@dataclass(slots=True)
class _Pair:
    """Where s and y are (`s3`, `y3` for slot 3), and their products."""

    slot: int
    step_times_change: float
    change_squared: float

    @property
    def step(self) -> str:
        return f"s{self.slot}"

    @property
    def change(self) -> str:
        return f"y{self.slot}"

    @property
    def rho(self) -> float:
        return 1.0 / self.step_times_change


@dataclass(slots=True)
class LBFGSHistory:
    """The last `length` pairs, oldest first. Reusing a slot overwrites its vectors."""

    length: int
    _pairs: list[_Pair] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._pairs)

    def clear(self) -> None:
        self._pairs.clear()

    def take(self, space: VectorSpace, *, step: float) -> None:
        """Store the step of this length along `direction`, and `gradient` minus `gradient-before`.

        A pair without positive curvature would turn directions uphill; it is left out.
        """
        slot = self._free_slot()
        pair = _Pair(slot, 0.0, 0.0)
        products = space.run(
            [
                copy(pair.step, "direction"),
                scale(pair.step, step),
                copy(pair.change, "gradient"),
                add(pair.change, "gradient-before", -1.0),
                dot(pair.step, pair.change),
                dot(pair.change, pair.change),
                dot(pair.step, "gradient-before"),
            ]
        )
        pair.step_times_change, pair.change_squared = products[:2]
        if pair.step_times_change > -products[2] * 2.0**-52:
            self._pairs = [*self._pairs, pair][-self.length :]

    def direct(self, space: VectorSpace) -> None:
        """Compute the direction −H g from `gradient` into `direction`."""
        alphas: list[float] = []
        pending: list[Operation] = [copy("direction", "gradient")]
        for pair in reversed(self._pairs):
            (product,) = space.run([*pending, dot(pair.step, "direction")])
            alphas.append(pair.rho * product)
            pending = [add("direction", pair.change, -alphas[-1])]
        if self._pairs:
            newest = self._pairs[-1]
            pending.append(scale("direction", newest.step_times_change / newest.change_squared))
        for pair, alpha in zip(self._pairs, reversed(alphas), strict=True):
            (product,) = space.run([*pending, dot(pair.change, "direction")])
            pending = [add("direction", pair.step, alpha - pair.rho * product)]
        space.run([*pending, scale("direction", -1.0)])

    def to_notes(self) -> list[list[Any]]:
        return [[pair.slot, pair.step_times_change, pair.change_squared] for pair in self._pairs]

    @classmethod
    def from_notes(cls, length: int, notes: list[list[Any]]) -> "LBFGSHistory":
        return cls(length, [_Pair(*note) for note in notes][-length:])

    def _free_slot(self) -> int:
        """Return a free slot of one more than pairs: a rejected pair must not overwrite one that is kept."""
        used = {pair.slot for pair in self._pairs}
        return next(slot for slot in range(self.length + 1) if slot not in used)
