"""Time calls: with CUDA events on a GPU, else with the processor time of this process.

Under a quota the wall clock jumps: a host with 0.4 cores runs for 4 ms, then stands still for 6. Processor time does
not, and divided by the share it equals the wall clock in the long run.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

MIN_BATCH_S = 0.003
BATCHES = 3

Call = Callable[[], Any]


class ProcessorClock:
    """This process's processor time, divided by its share of the processors."""

    def __init__(self) -> None:
        self.share = measure_share()

    def seconds(self, calls: Sequence[Call], count: int) -> float:
        """Return the time of `count` calls, cycling through `calls`."""
        start = time.process_time()
        for index in range(count):
            calls[index % len(calls)]()
        return (time.process_time() - start) / self.share


class EventClock:
    """The GPU's own clock: events before and after the calls, in its stream."""

    share = 1.0

    def seconds(self, calls: Sequence[Call], count: int) -> float:
        """Return the device's time of `count` calls, cycling through `calls`."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        for index in range(count):
            calls[index % len(calls)]()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000.0


Clock = ProcessorClock | EventClock


def clock_for(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return EventClock() if device.type == "cuda" else ProcessorClock()


def time_calls(clock: Clock, calls: Sequence[Call], *, batches: int = BATCHES) -> float:
    """Return the seconds of one call: the median of several batches, each long enough for the clock."""
    clock.seconds(calls, min(len(calls), 2))
    once = max(clock.seconds(calls, 2) / 2, 1e-7)
    count = max(2, min(2000, round(MIN_BATCH_S / once)))
    return median(clock.seconds(calls, count) / count for _ in range(batches))


def measure_share() -> float:
    """Measure how many processors this process really gets while it computes: its quota, or all of its threads."""
    work = torch.rand(256, 256)
    start, start_cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < 0.5:
        work @ work
    return (time.process_time() - start_cpu) / (time.perf_counter() - start)
