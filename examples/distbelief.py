"""DistBelief's two methods on one problem: Downpour SGD and Sandblaster L-BFGS. The last two ranks hold the weights.

    torchrun --standalone --nproc-per-node 5 examples/distbelief.py                        # Downpour: 3 replicas
    torchrun --standalone --nproc-per-node 5 examples/distbelief.py --method sandblaster   # a coordinator, 2 replicas

With --checkpoints DIR Sandblaster's servers keep weights and history there, and continue from them. Downpour's replicas
use GPUs where there are any, Sandblaster's with --device cuda. Sandblaster's line search depends on values, so rehearse
it with replicas on the CPU.
"""

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from job import own_device
from torch import Tensor, nn

from sandtable.methods.server import (
    LBFGS,
    Asynchronous,
    Checkpoints,
    Downpour,
    ParameterServer,
    Progress,
    Sandblaster,
    SandblasterRole,
    coordinate,
    run_replica,
    serve,
    serve_vectors,
)

NUM_SAMPLES = 4000


def main() -> None:
    """Run this rank's part of the job."""
    options = parse()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5))
    if options.method == "downpour":
        downpour(model, options)
    else:
        sandblaster(model, options)


def downpour(model: nn.Module, options: argparse.Namespace) -> None:
    """Train replicas on their parts of the samples, with Adagrad on the servers."""
    exchange = ParameterServer(shards=options.shards, timeout_s=options.timeout)
    role = exchange.role
    if role.is_server:
        adagrad = partial(torch.optim.Adagrad, lr=options.lr)
        report = serve(model, adagrad, exchange=exchange, sync=Asynchronous())
        say(f"server {report.shard}: {report.updates} updates, a gradient was {report.mean_delay:.1f} of them old")
        return
    device = own_device() if options.device is None else torch.device(options.device)
    model.to(device)
    inputs, targets = samples(NUM_SAMPLES, seed=1)
    mine = torch.arange(role.worker or 0, NUM_SAMPLES, role.num_workers)
    with Downpour(
        model,
        exchange=exchange,
        lr=options.lr,
        n_fetch=5,
        n_push=5,
        warm_start_steps=options.warm_start,
        overlap=not options.lockstep,
    ) as replica:
        generator = torch.Generator().manual_seed(replica.worker)
        for _ in range(options.steps):
            chosen = mine[torch.randint(len(mine), (64,), generator=generator)]
            F.cross_entropy(model(inputs[chosen].to(device)), targets[chosen].to(device)).backward()
            replica.step()
        replica.synchronize()
        counters = replica.counters
    say(
        f"replica {replica.worker}: accuracy {accuracy(model):.3f} after {counters.num_steps} steps, "
        f"{counters.num_pushes} pushes and {counters.num_fetches} fetches by shard"
    )


def sandblaster(model: nn.Module, options: argparse.Namespace) -> None:
    """Run L-BFGS on all samples; replicas take portions of a hundred."""
    settings = Sandblaster(shards=options.shards, timeout_s=options.timeout)
    model.double()
    if settings.role is SandblasterRole.SERVER:
        checkpoints = Checkpoints(directory=options.checkpoints, every=5) if options.checkpoints else None
        held = serve_vectors(model, settings=settings, checkpoints=checkpoints)
        say(f"server {held.shard}: {held.num_operations} operations, {held.num_counted} gradients of portions")
    elif settings.role is SandblasterRole.COORDINATOR:
        lbfgs = LBFGS(max_iterations=options.iterations)
        report = coordinate(settings=settings, num_samples=NUM_SAMPLES, portion_size=100, lbfgs=lbfgs, after=show)
        say(
            f"coordinator: loss {report.loss:.4f} after {report.num_iterations} iterations, {report.num_evaluations} "
            f"evaluations ({report.ending}); {report.num_twice} portions were given out twice"
        )
    else:
        device = torch.device(options.device or "cpu")
        model.to(device)
        inputs, targets = (part.to(device) for part in samples(NUM_SAMPLES, seed=1))
        inputs = inputs.double()

        def loss(model: nn.Module, numbers: range) -> Tensor:
            """Return the loss of a portion: losses add up, so each includes its share of the weight penalty."""
            part = slice(numbers.start, numbers.stop)
            fit = F.cross_entropy(model(inputs[part]), targets[part], reduction="sum")
            penalty = 1e-3 * sum(weight.square().sum() for weight in model.parameters())
            return (fit + len(numbers) * penalty) / NUM_SAMPLES

        done = run_replica(model, loss, settings=settings)
        say(f"replica {done.replica}: accuracy {accuracy(model):.3f}, {done.num_portions} portions")


def show(progress: Progress) -> None:
    if progress.iteration % 10 == 0:
        say(f"iteration {progress.iteration}: loss {progress.loss:.4f}, gradient {progress.gradient_norm:.1e}")


def samples(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return made-up data: the class is the largest of five fixed random projections."""
    inputs = torch.randn(size, 20, generator=torch.Generator().manual_seed(seed))
    projection = torch.randn(20, 5, generator=torch.Generator().manual_seed(4711))
    return inputs, (inputs @ projection).argmax(dim=1)


def accuracy(model: nn.Module) -> float:
    inputs, targets = samples(4000, seed=2)
    found = model(inputs.to(next(model.parameters()))).argmax(dim=1)
    return (found.cpu() == targets).float().mean().item()


def say(text: str) -> None:
    print(text + "\n", end="", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["downpour", "sandblaster"], default="downpour")
    parser.add_argument("--shards", type=int, default=2, help="servers; the last ranks")
    parser.add_argument("--steps", type=int, default=400, help="steps of each replica, with Downpour")
    parser.add_argument("--lr", type=float, default=0.05, help="rate of Adagrad and of local steps, with Downpour")
    parser.add_argument("--warm-start", type=int, default=50, help="steps that one replica makes alone, with Downpour")
    parser.add_argument("--lockstep", action="store_true", help="wait for every message, with Downpour")
    parser.add_argument("--device", help="where replicas compute")
    parser.add_argument("--iterations", type=int, default=40, help="iterations of L-BFGS, with Sandblaster")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a silent peer is an error")
    parser.add_argument("--checkpoints", help="directory in which Sandblaster's servers keep their shards")
    return parser.parse_args()


if __name__ == "__main__":
    main()
