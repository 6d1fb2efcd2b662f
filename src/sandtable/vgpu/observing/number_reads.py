"""Number reads: numbers that the script reads from the card, and whose they are: every rank's, or each rank's own."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, before

__all__ = ["follow_number_reads"]

_MOST_READS = 6
"""Of each line: a decision is the same in all steps."""


def follow_number_reads(log: EventLog) -> None:
    """Note single numbers that are read with `item()`, `float()`, or as a condition."""
    import torch

    counts: Counter[tuple[str, int]] = Counter()

    def notice(tensor: Any) -> None:
        if log.only is not None or type(tensor) is not torch.Tensor or not tensor.is_cuda or tensor.numel() != 1:
            return
        if log.core.is_compiling():
            return
        place = log.place()
        counts[place.file, place.line] += 1
        if counts[place.file, place.line] <= _MOST_READS:
            (identity,), (outline,) = log.core.identities_of([tensor])
            log.note(EventKind.NUMBER_READ, identity=str(identity), outline=str(outline))

    for name in ("item", "__bool__", "__float__", "__int__"):
        before(torch.Tensor, name, notice)
