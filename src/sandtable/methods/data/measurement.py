"""Measurement: what one epoch, or a whole training run, cost one rank."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Measurement", "total"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Times in seconds, as this rank saw them.

    `communication_s`: the time of exchanges on the rank that waited least for others. `synchronisation_s`: their time
    on this rank, communication plus waiting for others. `exposed_s`: how long the training loop waited for them, coding
    included; the rest of `seconds` is `compute_s`. Without overlap, exposed is synchronisation plus coding.
    `disagreement`: mean squared distance of the replicas to their mean, over the mean's square.
    """

    steps: int
    seconds: float
    compute_s: float
    communication_s: float
    synchronisation_s: float
    exposed_s: float
    sent_bytes: int
    received_bytes: int
    messages: int
    disagreement: float | None = None
    accuracy: float | None = None
    loss: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def total(epochs: Sequence[Measurement]) -> Measurement:
    """Sum over epochs; disagreement, accuracy and loss are the last epoch's."""
    last = epochs[-1] if epochs else None
    return Measurement(
        steps=sum(epoch.steps for epoch in epochs),
        seconds=sum(epoch.seconds for epoch in epochs),
        compute_s=sum(epoch.compute_s for epoch in epochs),
        communication_s=sum(epoch.communication_s for epoch in epochs),
        synchronisation_s=sum(epoch.synchronisation_s for epoch in epochs),
        exposed_s=sum(epoch.exposed_s for epoch in epochs),
        sent_bytes=sum(epoch.sent_bytes for epoch in epochs),
        received_bytes=sum(epoch.received_bytes for epoch in epochs),
        messages=sum(epoch.messages for epoch in epochs),
        disagreement=None if last is None else last.disagreement,
        accuracy=None if last is None else last.accuracy,
        loss=None if last is None else last.loss,
    )
