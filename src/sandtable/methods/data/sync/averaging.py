"""Averaging weights: directly, or by how far they have moved since all of them were last known.

*Directly*: the weights are mixed with those of the partners. *By movement*: each rank keeps its starting point and
mixes the distance d it has moved since; an outer optimizer then moves the starting point. Movement compresses well (it
is small and much like a gradient), and outer optimizers need it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sandtable.methods.data.exchange.exchange import Exchange, ExchangeCost, VectorSpec
from sandtable.methods.data.sync.outer import Outer
from sandtable.methods.data.sync.sync import SyncSetup
from sandtable.methods.transport.vectors import flatten

__all__ = ["DirectAverage", "MovementAverage", "WeightAverage"]


class WeightAverage(ABC):
    """Some parameters of the model, averaged together."""

    def __init__(self, setup: SyncSetup, parameters: Sequence[Tensor], *, seed: int) -> None:
        self.vectors = flatten(parameters)
        self.turn = 0
        self._wire = setup.wire
        self._exchange: Exchange = setup.exchange
        self._specs = [
            VectorSpec.of(vector, setup.compression, seed=seed + 1000 * number)
            for number, vector in enumerate(self.vectors)
        ]

    def begin(self) -> None:
        """Start again: all ranks hold the same weights now."""
        for vector in self.vectors:
            vector.load_weights()
        self._begin()

    @torch.no_grad()
    def mix(self) -> None:
        """Compute the mixed weights of all ranks; the model keeps its own until `store`."""
        for vector in self.vectors:
            vector.load_weights()
        self._mix()

    def store(self) -> None:
        """Put the mixed weights into the model."""
        for vector in self.vectors:
            vector.store_weights()
        self.turn += 1

    @abstractmethod
    def cost(self) -> ExchangeCost:
        """Compute the cost of one exchange."""

    def _sum(self, cost: Callable[[int, VectorSpec], ExchangeCost]) -> ExchangeCost:
        total = ExchangeCost.nothing()
        for spec in self._specs:
            total = total + cost(self._wire.size, spec)
        return total

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _mix(self) -> None: ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DirectAverage(WeightAverage):
    """Mixes the weights themselves."""

    def __init__(self, setup: SyncSetup, parameters: Sequence[Tensor], *, seed: int) -> None:
        super().__init__(setup, parameters, seed=seed)
        self._mixers = [setup.exchange.weight_mixer(setup.wire, spec) for spec in self._specs]

    def cost(self) -> ExchangeCost:
        return self._sum(self._exchange.weight_cost)

    def _begin(self) -> None:
        for mixer, vector in zip(self._mixers, self.vectors, strict=True):
            mixer.begin(vector)

    def _mix(self) -> None:
        for mixer, vector in zip(self._mixers, self.vectors, strict=True):
            mixer.mix(vector, turn=self.turn)

    def state_dict(self) -> dict[str, Any]:
        return {"turn": self.turn, "mixers": [mixer.state_dict() for mixer in self._mixers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turn = state["turn"]
        for mixer, mixer_state in zip(self._mixers, state["mixers"], strict=True):
            mixer.load_state_dict(mixer_state)


class MovementAverage(WeightAverage):
    """Mixes how far the weights have moved; `outer` decides what to do with it."""

    def __init__(
        self, setup: SyncSetup, parameters: Sequence[Tensor], *, outer: Outer, optimizer: Optimizer, seed: int
    ) -> None:
        super().__init__(setup, parameters, seed=seed)
        self._outer = outer
        self._optimizer = optimizer
        self._mixers = [setup.exchange.mixer(setup.wire, spec) for spec in self._specs]
        self._slow = [vector.data.clone() for vector in self.vectors]
        self._velocity = [torch.zeros_like(slow) for slow in self._slow]
        self._consensus_mixers = (
            [setup.exchange.weight_mixer(setup.wire, spec) for spec in self._specs] if outer.needs_consensus else []
        )

    def cost(self) -> ExchangeCost:
        movement = self._sum(self._exchange.cost)
        return movement + self._sum(self._exchange.weight_cost) if self._outer.needs_consensus else movement

    def _begin(self) -> None:
        for number, vector in enumerate(self.vectors):
            self._slow[number].copy_(vector.data)
            if self._consensus_mixers:
                self._consensus_mixers[number].begin(vector)

    def _mix(self) -> None:
        inner_lr = float(self._optimizer.param_groups[0]["lr"])
        for number, vector in enumerate(self.vectors):
            slow = self._slow[number]
            vector.data.copy_(slow - vector.data)
            self._mixers[number].mix(vector, turn=self.turn)
            moved = vector.data.clone()
            self._outer.advance(
                slow, moved=moved, velocity=self._velocity[number], apart=self._apart(number), inner_lr=inner_lr
            )
            vector.data.copy_(slow)

    def _apart(self, number: int) -> Tensor | None:
        if not self._consensus_mixers:
            return None
        vector = self.vectors[number]
        vector.data.copy_(self._slow[number])
        self._consensus_mixers[number].mix(vector, turn=self.turn)
        return self._slow[number] - vector.data

    def state_dict(self) -> dict[str, Any]:
        return {
            "turn": self.turn,
            "mixers": [mixer.state_dict() for mixer in self._mixers],
            "consensus_mixers": [mixer.state_dict() for mixer in self._consensus_mixers],
            "slow": [slow.clone() for slow in self._slow],
            "velocity": [velocity.clone() for velocity in self._velocity],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turn = state["turn"]
        for key, mixers in (("mixers", self._mixers), ("consensus_mixers", self._consensus_mixers)):
            for mixer, mixer_state in zip(mixers, state[key], strict=True):
                mixer.load_state_dict(mixer_state)
        for key, tensors in (("slow", self._slow), ("velocity", self._velocity)):
            for tensor, saved in zip(tensors, state[key], strict=True):
                tensor.copy_(saved)
