"""Compressed gossip of weights: neighbours tell each other what has changed since they last spoke.

Weights cannot be sparsified as gradients can: a weight that is not sent is not zero. So each pair of partners keeps
two vectors both of them know exactly: `told`, what this rank has told the other about its weights, and `heard`, what
the other has told. A message is the compressed difference between the weights and `told`; what it leaves out stays in
that difference and goes next time, so no error feedback is needed beside it (CHOCO-SGD, Koloskova et al. 2019, has
one such vector for all neighbours; partners that rotate need one for each). Then

    x_i ← x_i + K_ij · (heard_ij - told_ij)

and, as `heard` of one side is `told` of the other, what one gains the other loses: the mean is conserved exactly. Of
a sparse compression only components enter that one of the two has just sent; the other's may be older, but differ
from the truth by less than what was worth sending.

Three vectors are kept for each partner (the third is what was sent last). To keep them few, partners rotate over the
distances 1, 2, 4, ... (≤ P//2) instead of all: news still reaches everybody within log2 P turns.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.compression import Codec, Compression
from sandtable.methods.exchange.exchange import Line, Mixer
from sandtable.methods.exchange.partners import Partners
from sandtable.methods.flat import Vector
from sandtable.methods.wire import Wire

__all__ = ["PairwiseMixer", "check_never_overshoots"]

_SAMPLE_ELEMENTS = 4096


class PairwiseMixer(Mixer):
    """Weights, with what each partner knows of them."""

    def __init__(self, wire: Wire, line: Line, partners: Partners) -> None:
        self._wire = wire
        self._line = line
        self._partners = partners
        self._compression = _without_feedback(line.compression)
        self._pairs: dict[int, _Pair] = {}
        self._start: Tensor | None = None

    def begin(self, vector: Vector) -> None:
        """All ranks hold the same weights now: that is what everybody knows."""
        self._pairs.clear()
        self._start = vector.data.clone()

    def mix(self, vector: Vector, *, turn: int) -> None:
        sources = self._partners.sources(self._wire.rank, turn)
        pairs = {peer: self._pair(peer) for peer in sources}
        outgoing = {peer: pair.tell(vector.data) for peer, pair in pairs.items()}
        arrived = self._wire.exchange_messages(outgoing, list(sources), capacity_bytes=self._line.capacity_bytes)
        for peer, weight in sources.items():
            vector.data.add_(pairs[peer].hear(arrived[peer]), alpha=weight)

    def _pair(self, peer: int) -> "_Pair":
        if peer not in self._pairs:
            assert self._start is not None, "begin() comes first"
            seed = self._line.seed + self._wire.rank * self._wire.size + peer
            codec = self._compression.codec(self._line.num_elements, self._line.dtype, self._line.device, seed=seed)
            self._pairs[peer] = _Pair(codec, self._start, is_sparse=self._line.compression.is_sparse)
        return self._pairs[peer]

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start, "pairs": {str(peer): pair.state_dict() for peer, pair in self._pairs.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state["start"]
        self._pairs.clear()
        for peer, pair in state["pairs"].items():
            self._pair(int(peer)).load_state_dict(pair)


def check_never_overshoots(line: Line) -> None:
    """What is left to tell must shrink with every message: refuse a code that leaves more than there was."""
    compression = _without_feedback(line.compression)
    size = min(line.num_elements, _SAMPLE_ELEMENTS)
    sample = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(line.device, line.dtype)
    codec = compression.codec(size, line.dtype, line.device, seed=line.seed)
    decoded = torch.empty_like(sample)
    codec.decode(codec.encode(sample), decoded)
    if (sample - decoded).norm() > sample.norm():
        raise MethodError(
            "compressed gossip of weights must send what brings partners nearer, but without error feedback "
            f"{compression} overshoots; try a compression such as TopK(0.01), or exchange=AllReduce()"
        )


class _Pair:
    """What this rank and one other have told each other."""

    def __init__(self, codec: Codec, start: Tensor, *, is_sparse: bool) -> None:
        self._codec = codec
        self._is_sparse = is_sparse
        self._told = start.clone()
        self._heard = start.clone()
        self._sent = torch.zeros_like(start)

    def tell(self, weights: Tensor) -> Tensor:
        message = self._codec.encode(weights - self._told)
        self._codec.decode(message, self._sent)
        self._told += self._sent
        return message

    def hear(self, message: Tensor) -> Tensor:
        """How much further the other is, as far as both know."""
        received = torch.empty_like(self._heard)
        self._codec.decode(message, received)
        self._heard += received
        further = self._heard - self._told
        if self._is_sparse:
            further[(received == 0) & (self._sent == 0)] = 0
        return further

    def state_dict(self) -> dict[str, Any]:
        return {"told": self._told, "heard": self._heard, "codec": self._codec.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._told.copy_(state["told"])
        self._heard.copy_(state["heard"])
        self._codec.load_state_dict(state["codec"])


def _without_feedback(compression: Compression) -> Compression:
    """The same compression without error feedback and what belongs to it, which would send what was left out twice."""
    settings: Any = compression
    names = {field.name for field in fields(settings)} if is_dataclass(settings) else set()
    off = {"error_feedback": False, "decay": 1.0, "momentum": None}
    changes = {name: value for name, value in off.items() if name in names}
    plain: Compression = replace(settings, **changes) if changes else settings
    return plain
