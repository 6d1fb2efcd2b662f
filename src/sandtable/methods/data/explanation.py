"""Does it pay? What a step costs, before the first one is taken.

Bytes and messages follow from formulas; a bandwidth and a latency turn them into seconds. The time of coding is
measured on this machine, on a sample vector, since it decides on fast links.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.data.compression.compression import Compression
from sandtable.methods.data.compression.none import NoCompression
from sandtable.methods.data.exchange.all_reduce import AllReduce
from sandtable.methods.data.exchange.exchange import ExchangeCost, VectorSpec
from sandtable.methods.transport.vectors import Vector
from sandtable.units import format_bytes, format_seconds

__all__ = ["Explanation", "explain"]

_SAMPLE_ELEMENTS = 1 << 18
# Flags of used parameters make a dense step a few bytes longer than its formula.
_NOTICEABLE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An average step of this method against a step of dense all-reduce, per rank.

    Times are None where no bandwidth was given. `warning` is set when the method does not pay.
    """

    messages: float
    sent_bytes: float
    dense_messages: float
    dense_bytes: float
    coding_s: float
    communication_s: float | None
    dense_communication_s: float | None
    warning: str | None

    def __str__(self) -> str:
        lines = [
            f"a step sends {format_bytes(round(self.sent_bytes))} in {self.messages:.3g} messages, "
            f"where dense all-reduce sends {format_bytes(round(self.dense_bytes))} in {self.dense_messages:.3g}"
        ]
        if self.coding_s:
            lines.append(f"coding takes {format_seconds(self.coding_s)} per step (measured)")
        if self.communication_s is not None and self.dense_communication_s is not None:
            lines.append(
                f"communication takes about {format_seconds(self.communication_s)} per step, "
                f"dense all-reduce {format_seconds(self.dense_communication_s)}"
            )
        if self.warning:
            lines.append(f"warning: {self.warning}")
        return "\n".join(lines)


def explain(
    cost: ExchangeCost,
    parameters: Sequence[Tensor],
    *,
    compression: Compression,
    num_ranks: int,
    bandwidth: float | None,
    latency: float | None,
) -> Explanation:
    """Compare with dense all-reduce; `bandwidth` is in bytes/s each way, `latency` in s per message."""
    if bandwidth is not None and not bandwidth > 0:
        raise MethodError(f"bandwidth must be above 0 bytes/s, but got {bandwidth:g}; 100 Mbit/s is 12.5e6")
    if latency is not None and (bandwidth is None or not latency >= 0):
        raise MethodError(
            f"latency must be 0 s or more and come with a bandwidth, but got latency={latency:g} and "
            f"bandwidth={bandwidth}; try explain(12.5e6, 0.0005)"
        )
    dense = _dense_cost(parameters, num_ranks)
    coding_s = cost.coded_elements * _coding_s_per_element(compression, parameters[0])
    communication_s = _seconds(cost, bandwidth, latency)
    dense_s = _seconds(dense, bandwidth, latency)
    return Explanation(
        messages=cost.messages,
        sent_bytes=cost.sent_bytes,
        dense_messages=dense.messages,
        dense_bytes=dense.sent_bytes,
        coding_s=coding_s,
        communication_s=communication_s,
        dense_communication_s=dense_s,
        warning=_warning(cost, dense, coding_s, communication_s, dense_s),
    )


def _dense_cost(parameters: Sequence[Tensor], num_ranks: int) -> ExchangeCost:
    total = ExchangeCost.nothing()
    for dtype in sorted({parameter.dtype for parameter in parameters}, key=str):
        same = [parameter.detach().to("meta") for parameter in parameters if parameter.dtype == dtype]
        spec = VectorSpec.of(Vector(same), NoCompression(), seed=0)
        total = total + AllReduce().cost(num_ranks, spec)
    return total


def _seconds(cost: ExchangeCost, bandwidth: float | None, latency: float | None) -> float | None:
    if bandwidth is None:
        return None
    return max(cost.sent_bytes, cost.busiest_bytes) / bandwidth + cost.rounds * (latency or 0.0)


def _coding_s_per_element(compression: Compression, like: Tensor) -> float:
    """Measure the seconds to encode or decode one element, the mean of both, on this machine."""
    if compression.is_lossless or hasattr(compression, "reducer"):
        return 0.0
    sample = torch.randn(_SAMPLE_ELEMENTS, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
    codec = compression.codec(len(sample), sample.dtype, sample.device)
    codec.add(codec.encode(sample), torch.zeros_like(sample))
    start = time.perf_counter()
    codec.add(codec.encode(sample), torch.zeros_like(sample))
    return (time.perf_counter() - start) / (2 * len(sample))


def _warning(
    cost: ExchangeCost, dense: ExchangeCost, coding_s: float, communication_s: float | None, dense_s: float | None
) -> str | None:
    if communication_s is not None and dense_s is not None:
        if communication_s + coding_s > _NOTICEABLE * dense_s:
            return (
                f"this costs more than it saves: {format_seconds(communication_s + coding_s)} per step with coding, "
                f"{format_seconds(dense_s)} for dense all-reduce; on such links train without compression"
            )
    elif cost.sent_bytes > _NOTICEABLE * dense.sent_bytes:
        return (
            "this sends more bytes than dense all-reduce; "
            "compressed messages go to every rank, so with many ranks they must be short"
        )
    return None
