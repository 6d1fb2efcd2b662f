"""Measure what gloo achieves on the links between hosts: run by torchrun, one process per host.

torchrun -m sandtable.lab.probes.links OUTPUT: rank 0 writes {"ping": [[peer, bytes, seconds]], "all_reduce": [[bytes,
seconds]], "core_seconds_per_byte": ...}. A ping is one way: half of a round trip.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

PING_BYTES = (4, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 21)
REDUCE_BYTES = (4, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 23)
TIMES, TIMES_OF_SMALL, SMALL_BYTES = 3, 15, 1 << 12


def main() -> None:
    """Ping every host from the first one, then all-reduce over all."""
    dist.init_process_group("gloo")
    pings = [
        [peer, size, timed(partial(ping, peer, size), TIMES_OF_SMALL if size <= SMALL_BYTES else TIMES) / 2]
        for peer in range(1, dist.get_world_size())
        for size in PING_BYTES
    ]
    start = time.process_time()
    reduces = [[size, timed(partial(reduce, size))] for size in REDUCE_BYTES]
    spent = time.process_time() - start
    if dist.get_rank() == 0:
        moved = 2 * sum(REDUCE_BYTES) * (TIMES + 1)
        result = {"ping": pings, "all_reduce": reduces, "core_seconds_per_byte": spent / moved}
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


def timed(act: Callable[[], object], times: int = TIMES) -> float:
    """Return the slowest rank's seconds: the median of several calls, after one that opens the connections."""
    act()
    samples = []
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        act()
        seconds = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        samples.append(float(seconds))
    return median(samples)


def reduce(size: int) -> None:
    """All-reduce `size` bytes over all ranks."""
    dist.all_reduce(torch.ones(max(1, size // 4)))


def ping(peer: int, size: int) -> None:
    """Send from rank 0 to `peer` and back; other ranks do nothing."""
    data = torch.ones(size, dtype=torch.uint8)
    if dist.get_rank() == 0:
        dist.send(data, peer)
        dist.recv(data, peer)
    elif dist.get_rank() == peer:
        dist.recv(data, 0)
        dist.send(data, 0)


if __name__ == "__main__":
    main()
