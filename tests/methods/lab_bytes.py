"""A program for the lab's hosts: what each method sends, by its formula and by the kernel's counters.

python lab_bytes.py OUT: one line of JSON for each combination is written to OUT by the first rank, [what, formula,
counted], in bytes per step of the mean rank.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sandtable.methods.data import (
    QSGD,
    AllReduce,
    Compression,
    DataParallel,
    Exchange,
    Gossip,
    Half,
    LocalSGD,
    NoCompression,
    PowerSGD,
    RandomK,
    Sign,
    Threshold,
    TopK,
)

_TCP_HEADERS = 14 + 20 + 32
"""Ethernet, IP and TCP with its time stamps, once a packet of the kernel's counting."""
_SEGMENT = 1448
"""What TCP sends at most in one segment of a frame of 1,500 bytes."""
_STEPS = 4
_WIDTH = 1024

COMBINATIONS: list[tuple[Exchange, Compression]] = [
    (AllReduce(), NoCompression()),
    (AllReduce("ring"), NoCompression()),
    (Gossip(), NoCompression()),
    *(
        (exchange, compression)
        for exchange in (AllReduce(), Gossip())
        for compression in (
            Half(),
            Sign(),
            *(QSGD(bits=bits) for bits in range(2, 9)),
            TopK(0.05),
            RandomK(0.05),
            Threshold(share=0.05),
        )
    ),
    (AllReduce(), PowerSGD(128)),
]


def main(out: Path) -> None:
    os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["NODE_RANK"], os.environ["NNODES"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    lines = [json.dumps(measure(exchange, compression)) for exchange, compression in COMBINATIONS]
    lines.append(json.dumps(measure(Gossip(), TopK(0.05), sync=LocalSGD(2))))
    if dist.get_rank() == 0:
        out.write_text("\n".join(lines))


def measure(exchange: Exchange, compression: Compression, **settings: Any) -> tuple[str, float, float]:
    """Return formula and count for a model of one 1024 x 1024 matrix."""
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(_WIDTH, _WIDTH, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parallel = DataParallel(model, optimizer, exchange=exchange, compression=compression, **settings)
    for _ in range(2):  # connections between partners are made at their first message
        step(model, parallel)
    dist.barrier()
    before = payload()
    for _ in range(_STEPS):
        step(model, parallel)
    dist.barrier()
    counted = torch.tensor([(payload() - before) / _STEPS])
    dist.all_reduce(counted)
    formula = parallel.explain().sent_bytes
    return f"{settings} {exchange} {compression}", formula, counted.item() / dist.get_world_size()


def step(model: nn.Module, parallel: DataParallel) -> None:
    model(torch.randn(8, _WIDTH)).square().mean().backward()
    parallel.step()


def payload() -> int:
    """Return the bytes that left through this host's cable, without headers and retransmissions."""
    counters = Path("/sys/class/net/eth0/statistics")
    sent, packets = (int((counters / name).read_text()) for name in ("tx_bytes", "tx_packets"))
    return sent - packets * _TCP_HEADERS - segments_sent_again() * _SEGMENT


def segments_sent_again() -> int:
    """Count retransmissions by this host's kernel: on a busy machine TCP takes late answers for losses."""
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
