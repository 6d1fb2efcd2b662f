"""Clocks: when work on a device began and ended."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

__all__ = ["Clock", "DeviceClock", "HostClock"]


class Clock(Protocol):
    def mark(self) -> Any: ...

    def seconds(self, span: tuple[Any, Any]) -> float: ...

    def wait(self) -> None:
        """Until all marks have come."""


class HostClock:
    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, span: tuple[float, float]) -> float:
        return span[1] - span[0]

    def wait(self) -> None: ...


class DeviceClock:
    """Events on the stream; on virtual GPUs `sandtable.plan.predicted` finds them again, in the order of recording."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, span: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
        return float(span[0].elapsed_time(span[1])) / 1e3

    def wait(self) -> None:
        torch.cuda.synchronize()
