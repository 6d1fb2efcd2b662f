"""Chains: a model as a sequence of layers, and the bytes that cross between neighbours.

A graph of layers becomes a chain by an order in which each layer comes after those it reads from. Every output that is
still read after a cut crosses it, once, however many layers read it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from os import PathLike

from sandtable.errors import PlanError
from sandtable.pipeline_profile import LayerProfile, Profile

__all__ = ["Chain", "read_profile"]


def read_profile(path: str | PathLike[str]) -> "Chain":
    """Return the chain of layers that a profile file describes, in either of its forms."""
    return Chain.of_profile(Profile.load(path))


@dataclass(frozen=True, slots=True)
class Chain:
    """Layers in order; `cut_bytes[k]` cross from the first k + 1 layers to the rest (none after the last)."""

    layers: tuple[LayerProfile, ...]
    cut_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise PlanError("a model must have at least one layer to be split, but got none")
        if len(self.cut_bytes) != len(self.layers):
            raise PlanError(
                f"a chain must have one cut after each layer, but {len(self.layers)} layers have {len(self.cut_bytes)}"
            )

    @classmethod
    def of(cls, layers: Iterable[LayerProfile]) -> "Chain":
        """Return a chain in which each layer reads only the output of the one before it."""
        row = tuple(layers)
        return cls(row, tuple(layer.activation_bytes for layer in row[:-1]) + (0,) * bool(row))

    @classmethod
    def of_profile(cls, profile: Profile) -> "Chain":
        """Order the layers so that each comes after those it reads from; ties keep the profile's order."""
        layers = profile.layers
        place = {layer.name: number for number, layer in enumerate(layers)}
        readers: dict[int, set[int]] = {number: set() for number in range(len(layers))}
        for source, reader in profile.edges:
            readers[place[source]].add(place[reader])
        order = _sorted(readers)
        position = {number: at for at, number in enumerate(order)}
        cuts = [0] * len(layers)
        for number, readers_of_layer in readers.items():
            last = max((position[reader] for reader in readers_of_layer), default=position[number])
            for at in range(position[number], last):
                cuts[at] += layers[number].activation_bytes
        return cls(tuple(layers[number] for number in order), tuple(cuts))

    def scaled(self, factor: float) -> "Chain":
        """Return the chain for a minibatch `factor` times as large: times and activations scale, weights do not."""
        if not 0 < factor < float("inf"):
            raise PlanError(
                f"the minibatch must be more than 0 times the profiled one, but got {factor:g}; try 0.5 or 2"
            )
        layers = tuple(
            replace(
                layer,
                forward_s=layer.forward_s * factor,
                backward_s=layer.backward_s * factor,
                activation_bytes=round(layer.activation_bytes * factor),
            )
            for layer in self.layers
        )
        return Chain(layers, tuple(round(size * factor) for size in self.cut_bytes))

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def seconds(self) -> float:
        """Seconds for forward and backward of one minibatch on one machine."""
        return sum(layer.seconds for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        return sum(layer.weight_bytes for layer in self.layers)


def _sorted(readers: Mapping[int, set[int]]) -> list[int]:
    """Sort the layers after those they read from; of several that could come next, take the first given."""
    waiting = dict.fromkeys(readers, 0)
    for readers_of_layer in readers.values():
        for reader in readers_of_layer:
            waiting[reader] += 1
    ready = [number for number, count in waiting.items() if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for reader in readers[number]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heappush(ready, reader)
    if len(order) != len(readers):
        raise PlanError(
            "layers must not read from each other in a circle, but these do; give the edges of one forward pass"
        )
    return order
