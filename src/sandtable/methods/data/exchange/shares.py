"""All-reduce of compressed messages by shares: every rank sums one part of the vector.

Each rank cuts its vector into N parts and sends part j, compressed, to rank j. Rank j sums its part over all ranks,
compresses the mean, and sends it to all. A rank sends 2(N-1)/N of a message, in 2(N-1) pieces, where sending whole
messages to all takes N-1 of them.

The mean is compressed a second time, and what that loses must be remembered separately: with error feedback rank j
keeps it and adds it to its next mean. All ranks decode the same bytes, rank j included, so all have the same vector
afterwards. For sparse messages it does not pay: a mean of N of them has up to N times as many components.

As in Tang et al., 1-bit Adam, 2021 (arXiv:2102.02888), and Bernstein et al., signSGD with majority vote, 2018.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from sandtable.methods.data.compression.compression import Codec
from sandtable.methods.data.exchange.exchange import ExchangeCost, Mixer, VectorSpec
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

__all__ = ["ShareMixer", "share_cost"]


class ShareMixer(Mixer):
    """One codec per outgoing part, and one for the mean of this rank's own part."""

    def __init__(self, wire: Wire, spec: VectorSpec) -> None:
        self._wire = wire
        self._spec = spec
        self._bounds = list(pairwise(accumulate(_sizes(spec.num_elements, wire.size), initial=0)))
        self._out = [self._codec(part, spec.seed + wire.rank * wire.size + part) for part in range(wire.size)]
        self._mean = self._codec(wire.rank, spec.seed + wire.size * wire.size + wire.rank)

    def mix(self, vector: Vector, *, turn: int) -> None:
        wire, own = self._wire, self._wire.rank
        parts = [vector.data[start:stop] for start, stop in self._bounds]
        flags = (vector.flags != 0).to(torch.uint8)
        sent = {part: torch.cat([codec.encode(parts[part]), flags]) for part, codec in enumerate(self._out)}
        received = self._exchange({part: message for part, message in sent.items() if part != own})
        received[own] = sent[own]
        vector.flags.zero_()
        mean = torch.zeros_like(parts[own])
        for rank in range(wire.size):
            body = len(received[rank]) - self._spec.num_flags
            self._out[own].add(received[rank][:body], mean, 1 / wire.size)
            vector.flags.add_(received[rank][body:])
        message = self._mean.encode(mean)
        means = self._exchange({rank: message for rank in range(wire.size) if rank != own})
        means[own] = message
        for part, codec in enumerate(self._out):
            codec.decode(means[part], parts[part])
        if self._spec.compression.keeps_zeros:
            vector.flag_received()

    def state_dict(self) -> dict[str, Any]:
        return {"out": [codec.state_dict() for codec in self._out], "mean": self._mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for codec, saved in zip(self._out, state["out"], strict=True):
            codec.load_state_dict(saved)
        self._mean.load_state_dict(state["mean"])

    def _exchange(self, outgoing: dict[int, Tensor]) -> dict[int, Tensor]:
        sources: Sequence[int] = list(outgoing)
        return self._wire.exchange_messages(outgoing, sources, capacity_bytes=self._spec.capacity_bytes)

    def _codec(self, part: int, seed: int) -> Codec:
        start, stop = self._bounds[part]
        return self._spec.compression.codec(stop - start, self._spec.dtype, self._spec.device, seed=seed)


def share_cost(num_ranks: int, spec: VectorSpec) -> ExchangeCost:
    """Compute the cost: (N-1)/N of all parts twice, and the flags once to all ranks."""
    others = num_ranks - 1
    parts = sum(spec.compression.message_bytes(size, spec.dtype) for size in _sizes(spec.num_elements, num_ranks))
    return ExchangeCost(
        rounds=2,
        messages=2 * others,
        sent_bytes=others * (2 * parts / num_ranks + spec.num_flags),
        coded_elements=(3 + 1 / num_ranks) * spec.num_elements,
    )


def _sizes(num_elements: int, num_parts: int) -> list[int]:
    """Split as equally as possible, the longer parts first."""
    size, longer = divmod(num_elements, num_parts)
    return [size + (part < longer) for part in range(num_parts)]
