"""Compressed gossip of weights: neighbours send what has changed since their last exchange.

Weights cannot be sparsified like gradients: a weight that is not sent is not zero. So each pair of partners keeps two
vectors that both know exactly: `sent`, this rank's weights as far as the partner knows them, and `received`, the
partner's as far as this rank does. A message is the compressed difference between the weights and `sent`; what it
leaves out stays in that difference and goes next time, so no error feedback is needed (CHOCO-SGD, Koloskova et al.
2019, has one such vector for all neighbours; rotating partners need one each). Then

    x_i ← x_i + K_ij · (received_ij - sent_ij)

and, as one side's `received` is the other's `sent`, what one gains the other loses: the mean is conserved exactly. With
a sparse compression only components enter that one of the two has just sent; the other's may be older, but differ from
the truth by less than what was worth sending.

Three vectors are kept per partner (the third is the last message). To keep them few, partners rotate over the distances
1, 2, 4, ... (≤ P//2) instead of all: news still reaches every rank within log2 P turns.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.data.compression.compression import Codec, Compression
from sandtable.methods.data.exchange.exchange import Mixer, VectorSpec
from sandtable.methods.data.exchange.partners import Partners
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

__all__ = ["PairwiseMixer", "check_never_overshoots"]

_SAMPLE_ELEMENTS = 4096


class PairwiseMixer(Mixer):
    """Mixes weights, tracking what each partner knows of them."""

    def __init__(self, wire: Wire, spec: VectorSpec, partners: Partners) -> None:
        self._wire = wire
        self._spec = spec
        self._partners = partners
        self._compression = _without_feedback(spec.compression)
        self._pairs: dict[int, _Pair] = {}
        self._start: Tensor | None = None

    def begin(self, vector: Vector) -> None:
        """Start from equal weights on all ranks, which all partners know."""
        self._pairs.clear()
        self._start = vector.data.clone()

    def mix(self, vector: Vector, *, turn: int) -> None:
        sources = self._partners.sources(self._wire.rank, turn)
        pairs = {peer: self._pair(peer) for peer in sources}
        outgoing = {peer: pair.encode(vector.data) for peer, pair in pairs.items()}
        arrived = self._wire.exchange_messages(outgoing, list(sources), capacity_bytes=self._spec.capacity_bytes)
        for peer, weight in sources.items():
            vector.data.add_(pairs[peer].decode(arrived[peer]), alpha=weight)

    def _pair(self, peer: int) -> "_Pair":
        if peer not in self._pairs:
            assert self._start is not None, "begin() comes first"
            seed = self._spec.seed + self._wire.rank * self._wire.size + peer
            codec = self._compression.codec(self._spec.num_elements, self._spec.dtype, self._spec.device, seed=seed)
            self._pairs[peer] = _Pair(codec, self._start, is_sparse=self._spec.compression.is_sparse)
        return self._pairs[peer]

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start, "pairs": {str(peer): pair.state_dict() for peer, pair in self._pairs.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state["start"]
        self._pairs.clear()
        for peer, pair in state["pairs"].items():
            self._pair(int(peer)).load_state_dict(pair)


def check_never_overshoots(spec: VectorSpec) -> None:
    """Refuse a codec that leaves more to send than before: what is left must shrink with every message."""
    compression = _without_feedback(spec.compression)
    size = min(spec.num_elements, _SAMPLE_ELEMENTS)
    sample = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(spec.device, spec.dtype)
    codec = compression.codec(size, spec.dtype, spec.device, seed=spec.seed)
    decoded = torch.empty_like(sample)
    codec.decode(codec.encode(sample), decoded)
    if (sample - decoded).norm() > sample.norm():
        raise MethodError(
            "compressed gossip of weights must bring partners nearer, but without error feedback "
            f"{compression} overshoots; try a compression such as TopK(0.01), or exchange=AllReduce()"
        )


class _Pair:
    """What this rank and one partner know of each other."""

    def __init__(self, codec: Codec, start: Tensor, *, is_sparse: bool) -> None:
        self._codec = codec
        self._is_sparse = is_sparse
        self._sent = start.clone()
        self._received = start.clone()
        self._last_sent = torch.zeros_like(start)

    def encode(self, weights: Tensor) -> Tensor:
        """Return the message that brings the partner's knowledge nearer to `weights`."""
        message = self._codec.encode(weights - self._sent)
        self._codec.decode(message, self._last_sent)
        self._sent += self._last_sent
        return message

    def decode(self, message: Tensor) -> Tensor:
        """Return how much further the partner is, as far as both know."""
        last_received = torch.empty_like(self._received)
        self._codec.decode(message, last_received)
        self._received += last_received
        further = self._received - self._sent
        if self._is_sparse:
            further[(last_received == 0) & (self._last_sent == 0)] = 0
        return further

    def state_dict(self) -> dict[str, Any]:
        return {"sent": self._sent, "received": self._received, "codec": self._codec.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sent.copy_(state["sent"])
        self._received.copy_(state["received"])
        self._codec.load_state_dict(state["codec"])


def _without_feedback(compression: Compression) -> Compression:
    """Return the compression without error feedback and its options, which would send what was left out twice."""
    settings: Any = compression
    names = {field.name for field in fields(settings)} if is_dataclass(settings) else set()
    off = {"error_feedback": False, "decay": 1.0, "momentum": None}
    changes = {name: value for name, value in off.items() if name in names}
    plain: Compression = replace(settings, **changes) if changes else settings
    return plain
