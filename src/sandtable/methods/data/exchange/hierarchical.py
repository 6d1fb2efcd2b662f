"""Hierarchical: fast links inside a node, slow ones between nodes, each with its own exchange.

    1. inside each node, the mean of its ranks (fast)
    2. between the first ranks of the nodes, the outer exchange, compressed if there is a compression (slow)
    3. inside each node, the result from its first rank (fast)

With LocalSGD gradients are averaged inside the node at every step, so that a node trains as one, and only the weights
of nodes drift apart until they are averaged between nodes (hierarchical local SGD, Lin et al. 2018).
"""

from dataclasses import dataclass, field, replace
from typing import Any

from sandtable.errors import MethodError
from sandtable.methods.data.compression.none import NoCompression
from sandtable.methods.data.exchange.all_reduce import AllReduce
from sandtable.methods.data.exchange.exchange import Exchange, ExchangeCost, Mixer, VectorSpec
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

__all__ = ["Hierarchical"]


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Exchange):
    """`inner` inside each of `nodes` nodes of consecutive ranks, `outer` between them.

    Cost of the busiest rank, the first of its node: that of the outer exchange among `nodes` on the slow links.
    """

    nodes: int
    inner: Exchange = field(default_factory=AllReduce)
    outer: Exchange = field(default_factory=AllReduce)

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise MethodError(f"nodes must be 1 or more, but got {self.nodes}; give the number of machines")
        for name, level in (("inner", self.inner), ("outer", self.outer)):
            if not isinstance(level, Exchange):
                raise MethodError(f"{name} must be an Exchange between ranks, but got {level!r}; try AllReduce()")
        if not self.inner.reaches_all:
            raise MethodError(
                f"the inner exchange must leave a node's ranks equal, but {self.inner} does not; try inner=AllReduce()"
            )
        if isinstance(self.inner, Hierarchical) or isinstance(self.outer, Hierarchical):
            raise MethodError("Hierarchical has two levels, and neither may be Hierarchical itself; try AllReduce()")

    @property
    def reaches_all(self) -> bool:
        return self.outer.reaches_all

    def check(self, num_ranks: int) -> None:
        if num_ranks % self.nodes:
            legal = [str(number) for number in range(1, num_ranks + 1) if num_ranks % number == 0]
            raise MethodError(
                f"nodes ({self.nodes}) must divide the number of ranks ({num_ranks}); try {', '.join(legal)}"
            )
        self.outer.check(self.nodes)

    def every_step(self, wire: Wire) -> tuple[Exchange, Wire]:
        return self.inner, wire.divide(self.nodes)[0]

    def mixer(self, wire: Wire, spec: VectorSpec) -> Mixer:
        inside, between = wire.divide(self.nodes)
        plain = replace(spec, compression=NoCompression())
        outer = None if between is None else self.outer.mixer(between, spec)
        return _TwoLevels(inside, inner=self.inner.mixer(inside, plain), outer=outer)

    def weight_mixer(self, wire: Wire, spec: VectorSpec) -> Mixer:
        """Mix between nodes only: the ranks of a node have the same weights already."""
        # Only first ranks make the outer mixer; what it refuses all must refuse, or the others would wait forever.
        self.check_weights(spec)
        inside, between = wire.divide(self.nodes)
        outer = None if between is None else self.outer.weight_mixer(between, spec)
        return _TwoLevels(inside, inner=None, outer=outer)

    def check_weights(self, spec: VectorSpec) -> None:
        self.outer.check_weights(spec)

    def cost(self, num_ranks: int, spec: VectorSpec) -> ExchangeCost:
        return self.outer.cost(self.nodes, spec)

    def weight_cost(self, num_ranks: int, spec: VectorSpec) -> ExchangeCost:
        return self.outer.weight_cost(self.nodes, spec)


class _TwoLevels(Mixer):
    def __init__(self, inside: Wire, *, inner: Mixer | None, outer: Mixer | None) -> None:
        self._inside = inside
        self._inner = inner
        self._outer = outer

    def begin(self, vector: Vector) -> None:
        if self._outer is not None:
            self._outer.begin(vector)

    def mix(self, vector: Vector, *, turn: int) -> None:
        if self._inner is not None:
            self._inner.mix(vector, turn=turn)
        if self._outer is not None:
            self._outer.mix(vector, turn=turn)
        self._inside.broadcast(vector.whole)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._outer is None else {"outer": self._outer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])
