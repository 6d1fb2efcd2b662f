"""How long a call takes: by CUDA events where there is a GPU, else by the processor time of this process.

Under a quota the wall clock jumps: a host with 0.4 cores runs for 4 ms and then stands still for 6. Processor time does
not, and divided by the share it is what the wall clock would show in the long run.
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
    """This process's time on the processors, over its share of them."""

    def __init__(self) -> None:
        self.share = measure_share()

    def seconds(self, calls: Sequence[Call], count: int) -> float:
        """`count` calls, gone round."""
        start = time.process_time()
        for index in range(count):
            calls[index % len(calls)]()
        return (time.process_time() - start) / self.share


class EventClock:
    """The GPU's own clock: events before and after, in its stream."""

    share = 1.0

    def seconds(self, calls: Sequence[Call], count: int) -> float:
        """`count` calls, gone round, as the device saw them."""
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
    """The clock of a device."""
    return EventClock() if device.type == "cuda" else ProcessorClock()


def time_calls(clock: Clock, calls: Sequence[Call], *, batches: int = BATCHES) -> float:
    """Seconds of one call: the median of several batches, each long enough for the clock."""
    clock.seconds(calls, min(len(calls), 2))
    once = max(clock.seconds(calls, 2) / 2, 1e-7)
    count = max(2, min(2000, round(MIN_BATCH_S / once)))
    return median(clock.seconds(calls, count) / count for _ in range(batches))


def measure_share() -> float:
    """Processors this process really gets while it computes: its quota, or all of its threads."""
    work = torch.rand(256, 256)
    start, start_cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < 0.5:
        work @ work
    return (time.process_time() - start_cpu) / (time.perf_counter() - start)
