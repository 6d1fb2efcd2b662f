"""Train with few messages and survive a crash: kill a worker, and torchrun restarts all from the last checkpoint.

    torchrun --standalone --nproc-per-node 4 examples/local_sgd.py
    torchrun --standalone --nproc-per-node 4 examples/local_sgd.py --exchange gossip --compression threshold --period 4
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 4 --max-restarts 3 examples/local_sgd.py --checkpoints /tmp/run1

The variable gives restarted workers a new store: in torchrun's shared one gloo finds the addresses of dead workers.
"""

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from sandtable.methods.data import (
    AllReduce,
    DataParallel,
    Gossip,
    LocalSGD,
    NoCompression,
    ReplicaCheckpoints,
    Threshold,
)

EXCHANGES = {"all-reduce": AllReduce(), "gossip": Gossip()}
COMPRESSIONS = {"none": NoCompression(), "threshold": Threshold(share=0.05)}


def main() -> None:
    """Run on every rank."""
    options = parse()
    # The longest wait for a peer that hangs; one that dies is noticed at once.
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    parallel = DataParallel(
        model,
        optimizer,
        sync=LocalSGD(options.period),
        exchange=EXCHANGES[options.exchange],
        compression=COMPRESSIONS[options.compression],
    )
    first, checkpoints = 0, None
    if options.checkpoints:
        checkpoints = ReplicaCheckpoints(options.checkpoints, model=model, optimizer=optimizer, parallel=parallel)
        first = checkpoints.load()
    say(f"rank {rank}: process {os.getpid()} begins at step {first}")
    for step in range(first, options.steps):
        inputs, targets = batch(step * size + rank)
        F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        parallel.step()  # sandtable: ignore[gradients-not-reduced] weights are averaged every --period steps
        if checkpoints is not None and (step + 1) % options.every == 0:
            checkpoints.save(step + 1)
    parallel.synchronize()
    inputs, targets = batch(10**6, size=2000)
    accuracy = (model(inputs).argmax(dim=1) == targets).float().mean().item()
    weights = sum(parameter.double().abs().sum().item() for parameter in model.parameters())
    sent_bytes = parallel.record.end_epoch(accuracy=accuracy).sent_bytes
    say(
        f"rank {rank}: accuracy {accuracy:.3f} after {options.steps} steps, {sent_bytes} bytes sent, "
        f"weights {weights:.9f}"
    )
    dist.destroy_process_group()


def say(line: str) -> None:
    print(line + "\n", end="", flush=True)


def batch(seed: int, size: int = 64) -> tuple[Tensor, Tensor]:
    """Return made-up data: the class is the largest of five fixed random projections."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 20, generator=generator)
    projection = torch.randn(20, 5, generator=torch.Generator().manual_seed(4711))
    return inputs, (inputs @ projection).argmax(dim=1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--period", type=int, default=16, help="steps between exchanges")
    parser.add_argument("--exchange", choices=EXCHANGES, default="all-reduce")
    parser.add_argument("--compression", choices=COMPRESSIONS, default="none")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoints", help="directory in which all ranks keep their state")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a silent peer is an error")
    return parser.parse_args()


if __name__ == "__main__":
    main()
