"""Chains: a model as a row of layers, and the bytes that cross between each two of them.

A graph of layers becomes a chain by putting its layers in an order in which each comes after those it reads from. A cut
between two layers of that order is crossed by every output that is still read behind it, once, however many read it.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from sandtable.errors import PlanError

__all__ = ["Chain", "Layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer, as profiled with one minibatch on one machine."""

    name: str
    forward_s: float
    backward_s: float
    activation_bytes: int
    """Of its output, which backward needs again."""
    weight_bytes: int

    def __post_init__(self) -> None:
        for field in ("forward_s", "backward_s", "activation_bytes", "weight_bytes"):
            value = getattr(self, field)
            if not 0 <= value <= sys.float_info.max:
                raise PlanError(f"{field} of a layer must be a number from 0 on, but layer '{self.name}' has {value}")

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class Chain:
    """Layers in order; `cut_bytes[k]` crosses from the first k + 1 of them to the rest (nothing behind the last)."""

    layers: tuple[Layer, ...]
    cut_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise PlanError("a model must have at least one layer to be split, but got none")
        if len(self.cut_bytes) != len(self.layers):
            raise PlanError(
                f"a chain must have one cut behind each layer, but {len(self.layers)} layers have {len(self.cut_bytes)}"
            )

    @classmethod
    def of(cls, layers: Iterable[Layer]) -> "Chain":
        """Each layer reads the output of the one before it, and nothing else."""
        row = tuple(layers)
        return cls(row, tuple(layer.activation_bytes for layer in row[:-1]) + (0,) * bool(row))

    @classmethod
    def of_graph(cls, layers: Sequence[Layer], edges: Iterable[tuple[str, str]]) -> "Chain":
        """`edges` are pairs of names, from a layer to one that reads its output. Ties go by the order given."""
        place = {layer.name: number for number, layer in enumerate(layers)}
        if len(place) != len(layers):
            raise PlanError(f"layers must have names of their own, but {len(layers)} layers have {len(place)} names")
        readers: dict[int, set[int]] = {number: set() for number in range(len(layers))}
        for source, reader in edges:
            for name in (source, reader):
                if name not in place:
                    raise PlanError(f"an edge must join two layers, but there is no layer '{name}'")
            readers[place[source]].add(place[reader])
        order = _sorted(readers)
        position = {number: at for at, number in enumerate(order)}
        cuts = [0] * len(layers)
        for number, behind in readers.items():
            last = max((position[reader] for reader in behind), default=position[number])
            for at in range(position[number], last):
                cuts[at] += layers[number].activation_bytes
        return cls(tuple(layers[number] for number in order), tuple(cuts))

    def scaled(self, factor: float) -> "Chain":
        """With a minibatch `factor` times as large: times and activations grow with it, weights do not."""
        if not 0 < factor < float("inf"):
            raise PlanError(f"a minibatch must be more than 0 times the profiled one, but got {factor:g}; try 0.5 or 2")
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
        """Forward and backward of one minibatch on one machine."""
        return sum(layer.seconds for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        return sum(layer.weight_bytes for layer in self.layers)


def _sorted(readers: Mapping[int, set[int]]) -> list[int]:
    """Every layer after those it reads from; of several that could come next, the first given."""
    waiting = dict.fromkeys(readers, 0)
    for behind in readers.values():
        for reader in behind:
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
            "layers must not read from each other in a circle, but these do; give the edges of one pass forward"
        )
    return order
