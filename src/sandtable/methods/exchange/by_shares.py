"""All-reduce of short messages by shares: everybody is the accountant of one part of the vector.

Each rank cuts its vector into N parts and sends part j, compressed, to rank j. Rank j adds up what all say of its part,
compresses the mean, and sends it to everybody. What a rank sends is 2(N-1)/N of a message, in 2(N-1) pieces, where
sending whole messages to everybody takes N-1 of them.

The mean is compressed a second time, so what that loses needs a memory of its own: with error feedback the accountant
keeps it and adds it to the next mean. Everybody reads the same bytes, the accountant too, so all have the same vector
afterwards. For sparse messages it does not pay: a mean of N of them has up to N times as many components.

As in Tang et al., 1-bit Adam, 2021 (arXiv:2102.02888), and Bernstein et al., signSGD with majority vote, 2018.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from sandtable.methods.compression import Codec
from sandtable.methods.exchange.exchange import Cost, Line, Mixer
from sandtable.methods.flat import Vector
from sandtable.methods.wire import Wire

__all__ = ["ByShares", "cost_by_shares"]


class ByShares(Mixer):
    """One codec for each part on the way out, and one for the mean of this rank's own part."""

    def __init__(self, wire: Wire, line: Line) -> None:
        self._wire = wire
        self._line = line
        self._bounds = list(pairwise(accumulate(_sizes(line.num_elements, wire.size), initial=0)))
        self._out = [self._codec(part, line.seed + wire.rank * wire.size + part) for part in range(wire.size)]
        self._mean = self._codec(wire.rank, line.seed + wire.size * wire.size + wire.rank)

    def mix(self, vector: Vector, *, turn: int) -> None:
        wire, own = self._wire, self._wire.rank
        parts = [vector.data[start:stop] for start, stop in self._bounds]
        flags = (vector.flags != 0).to(torch.uint8)
        told = {part: torch.cat([codec.encode(parts[part]), flags]) for part, codec in enumerate(self._out)}
        heard = self._exchange({part: message for part, message in told.items() if part != own})
        heard[own] = told[own]
        vector.flags.zero_()
        mean = torch.zeros_like(parts[own])
        for rank in range(wire.size):
            body = len(heard[rank]) - self._line.num_flags
            self._out[own].add(heard[rank][:body], mean, 1 / wire.size)
            vector.flags.add_(heard[rank][body:])
        message = self._mean.encode(mean)
        means = self._exchange({rank: message for rank in range(wire.size) if rank != own})
        means[own] = message
        for part, codec in enumerate(self._out):
            codec.decode(means[part], parts[part])
        if self._line.compression.keeps_zeros:
            vector.use_what_came()

    def state_dict(self) -> dict[str, Any]:
        return {"out": [codec.state_dict() for codec in self._out], "mean": self._mean.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for codec, saved in zip(self._out, state["out"], strict=True):
            codec.load_state_dict(saved)
        self._mean.load_state_dict(state["mean"])

    def _exchange(self, outgoing: dict[int, Tensor]) -> dict[int, Tensor]:
        sources: Sequence[int] = list(outgoing)
        return self._wire.exchange_messages(outgoing, sources, capacity_bytes=self._line.capacity_bytes)

    def _codec(self, part: int, seed: int) -> Codec:
        start, stop = self._bounds[part]
        return self._line.compression.codec(stop - start, self._line.dtype, self._line.device, seed=seed)


def cost_by_shares(num_ranks: int, line: Line) -> Cost:
    """(N-1)/N of all parts twice, and the flags once to everybody."""
    others = num_ranks - 1
    parts = sum(line.compression.message_bytes(size, line.dtype) for size in _sizes(line.num_elements, num_ranks))
    return Cost(
        rounds=2,
        messages=2 * others,
        sent_bytes=others * (2 * parts / num_ranks + line.num_flags),
        coded_elements=(3 + 1 / num_ranks) * line.num_elements,
    )


def _sizes(num_elements: int, num_parts: int) -> list[int]:
    """As equal as can be, the longer ones first."""
    size, longer = divmod(num_elements, num_parts)
    return [size + (part < longer) for part in range(num_parts)]
