"""Train with parameter servers: the last ranks hold the weights, the others push gradients and pull weights.

    torchrun --standalone --nproc-per-node 4 examples/parameter_server.py                    # 2 workers, 2 servers
    torchrun --standalone --nproc-per-node 4 examples/parameter_server.py --sync stale --bound 4
    torchrun --standalone --nproc-per-node 4 examples/parameter_server.py --sync bulk --checkpoints /tmp/shards

Or use roles on two machines, each with its own torchrun (docs/servers.md): `--role server` and `--role worker`.
"""

import argparse
import time
from functools import partial

import torch
import torch.nn.functional as F
from job import own_device
from torch import Tensor, nn

from sandtable.methods.data import BulkSynchronous
from sandtable.methods.server import Asynchronous, Checkpoints, ParameterServer, ServerClient, StaleSynchronous, serve


def main() -> None:
    """Run this rank's part of the job: serve or train."""
    options = parse()
    syncs = {"async": Asynchronous(), "stale": StaleSynchronous(bound=options.bound), "bulk": BulkSynchronous()}
    sync, exchange = syncs[options.sync], ParameterServer(shards=options.shards, timeout_s=options.timeout)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))
    role = exchange.role

    if role.is_server:
        checkpoints = Checkpoints(directory=options.checkpoints, every=50) if options.checkpoints else None
        optimizer = partial(torch.optim.SGD, lr=options.lr, momentum=0.9)
        report = serve(model, optimizer, exchange=exchange, sync=sync, checkpoints=checkpoints)
        print(
            f"server {report.shard}: {report.updates} updates, a gradient was {report.mean_delay:.1f} updates old on "
            f"average and {report.largest_delay} at most, largest lead {report.largest_lead}\n",
            end="",
            flush=True,
        )
        return

    device = own_device()
    model.to(device)
    start = time.perf_counter()
    with ServerClient(model, sync=sync, exchange=exchange) as client:
        print(f"worker {client.worker} begins\n", end="", flush=True)
        for step in range(options.steps):
            inputs, targets = batch(step * role.num_workers + client.worker)
            F.cross_entropy(model(inputs.to(device)), targets.to(device)).backward()
            client.step()
        client.synchronize()
        counters = client.counters
    seconds = time.perf_counter() - start
    inputs, targets = batch(10**6, size=2000)
    accuracy = (model(inputs.to(device)).argmax(dim=1).cpu() == targets).float().mean().item()
    print(
        f"worker {client.worker}: accuracy {accuracy:.3f} after {options.steps} steps in {seconds:.2f} s "
        f"(communication {counters.communication_s:.2f} s, waiting {counters.waiting_s:.2f} s), "
        f"{counters.sent_bytes} bytes sent in {counters.num_messages} messages\n",
        end="",
        flush=True,
    )


def batch(seed: int, size: int = 64) -> tuple[Tensor, Tensor]:
    """Return made-up data: the class is the largest of five fixed random projections."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 20, generator=generator)
    projection = torch.randn(20, 5, generator=torch.Generator().manual_seed(4711))
    return inputs, (inputs @ projection).argmax(dim=1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sync", choices=["async", "stale", "bulk"], default="async")
    parser.add_argument("--bound", type=int, default=4, help="steps a worker may be ahead, with --sync stale")
    parser.add_argument("--shards", type=int, default=2, help="servers; the other ranks are workers")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a silent peer is an error")
    parser.add_argument("--checkpoints", help="directory in which servers keep their shards")
    return parser.parse_args()


if __name__ == "__main__":
    main()
