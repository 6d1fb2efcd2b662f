"""Compare PipeDream with data parallelism on slow links: images per second and bytes of a VGG-style net.

    sudo python bench/pipeline.py --data DATA                          # 4 hosts at 100 Mbit/s, CIFAR-10, some minutes
    sudo python bench/pipeline.py --data DATA --rate-mbit 50 --hosts 6
    sudo python bench/pipeline.py --quick                              # 2 hosts, a smaller net, few made-up images

The net has convolutions first, with most of the work, and dense layers last, with most of the weights. The hosts are a
lab on this machine (`sandtable.lab`), each with its share of the processors and a link of the given rate. First the
profiler times the layers on them, the partitioner splits the net, and its expectation is printed. Then three methods
train on the same minibatches, with the same optimizer:

ddp        torch's DistributedDataParallel: one minibatch per host, gradients averaged during the backward pass
bulk       our DataParallel, bulk-synchronous
pipedream  our Pipeline, asynchronous 1F1B, in the stages of the partitioner

The clock runs from the first image after a warm-up until every gradient is applied, so filling and draining the
pipeline count. Bytes are the kernel's counts on the links of all hosts. The partitioner's formula lets a host either
send or receive, and ignores the optimizer: data parallelism is faster than it expects, and stages with many weights are
slower. The last line is a JSON object:

hosts, rate_mbit, cores, batch, images    the settings: total cores, images per minibatch, total images
split, boundaries                         machines per stage, and the first layer of each stage but the first
expected                                  by the partitioner: speed_up, bytes_fewer
rows                                      method, seconds, images_per_s, sent_bytes of all hosts, loss (mean of the last
                                          quarter), expected_images_per_s, expected_bytes
speed_up                                  PipeDream's images per second over those of the faster data parallelism
bytes_fewer                               share of the bytes of the leaner data parallelism that PipeDream saved
skipped                                   instead of all others: why no lab can be built here
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sandtable.errors import SandtableError
from sandtable.lab import Lab, LabPlan, missing
from sandtable.methods.data import DataParallel
from sandtable.methods.pipeline import PipeDream, Pipeline, cut, profile
from sandtable.planner import Level, Partition, partition, read_profile
from sandtable.study.batches import Batches
from sandtable.study.data import ImageSet, load_images
from sandtable.study.worker_hosts import ENVIRONMENT

MBIT = 10**6 / 8
RATE, MOMENTUM, WEIGHT_DECAY = 0.002, 0.9, 5e-4
WIDTHS, QUICK_WIDTHS = (1536, 1024), (512, 256)
"""Outputs of the two hidden dense layers."""
CABLES = Path("/sys/class/net")
PATIENCE = timedelta(minutes=5)

Minibatches = Iterator[tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor], Tensor | None]
"""Train on a minibatch, and return the loss on the ranks that know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of every host. `warm_up` and `minibatches` are totals over all hosts."""

    method: str
    data: str
    folder: str
    batch: int
    warm_up: int
    minibatches: int
    seed: int
    widths: tuple[int, int]
    boundaries: tuple[int, ...]
    replicas: tuple[int, ...]
    out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """One method on one host."""

    step: Step
    finish: Callable[[], None]
    """Apply what is still in flight."""
    is_dealt_out: bool
    """Whether each host trains on its own minibatches, rather than on all of them."""


def main() -> None:
    """Compare the methods and print the figures."""
    args = parse()
    if args.worker:
        work(Settings(**json.loads(args.worker)))
        return
    if reason := missing():
        print(json.dumps({"skipped": reason}))
        return
    try:
        print(json.dumps(compare(args)))
    except SandtableError as error:
        sys.exit(f"bench/pipeline.py: {error}")


def network(images: ImageSet, *, seed: int, widths: tuple[int, int]) -> nn.Module:
    """Build the net. For 32 x 32 images its convolutions have 139,000 weights and 29 million multiplications.

    Its dense layers have 4.7 million of both.
    """
    channels, height, width = images.shape
    layers: list[nn.Module] = []
    torch.manual_seed(seed)
    for count in (32, 32, 0, 64, 64, 0, 128, 0):
        layers += [nn.Conv2d(channels, count, 3, padding=1), nn.ReLU()] if count else [nn.MaxPool2d(2)]
        channels = count or channels
    net = nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * (height // 8) * (width // 8), widths[0]),
        nn.ReLU(),
        nn.Linear(widths[0], widths[1]),
        nn.ReLU(),
        nn.Linear(widths[1], images.num_classes),
    )
    for parameter in net.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(
                parameter, nonlinearity="relu"
            )  # at this depth torch's own initialisation does not train
    return net


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Profile, split, and train by each method."""
    with Lab(
        LabPlan.uniform(args.hosts, bandwidth_bytes_per_s=args.rate_mbit * MBIT, cores=args.cores / args.hosts)
    ) as lab:
        split = split_on(lab, args)
        boundaries = tuple(stage.first for stage in split.stages[1:])
        expected = {
            "pipedream": (args.batch * split.minibatches_per_s, args.minibatches * split.bytes_per_minibatch),
            "ddp": (args.batch / split.data_parallel_seconds, args.minibatches * split.data_parallel_bytes),
        }
        expected["bulk"] = expected["ddp"]
        rows = []
        for method in ("ddp", "bulk", "pipedream"):
            found = run(lab, method, args, boundaries=boundaries, replicas=[stage.replicas for stage in split.stages])
            images_per_s, num_bytes = expected[method]
            rows.append(
                {"method": method, **found, "expected_images_per_s": images_per_s, "expected_bytes": round(num_bytes)}
            )
            print(describe(rows[-1]), flush=True)
    others, ours = rows[:-1], rows[-1]
    speed_up = ours["images_per_s"] / max(row["images_per_s"] for row in others)
    bytes_fewer = 1 - ours["sent_bytes"] / min(row["sent_bytes"] for row in others)
    print(f"PipeDream {split.name}: {speed_up:.2f} times as fast as data parallelism, {bytes_fewer:.1%} fewer bytes")
    return {
        "hosts": args.hosts,
        "rate_mbit": args.rate_mbit,
        "cores": args.cores,
        "batch": args.batch,
        "images": args.minibatches * args.batch,
        "split": split.name,
        "boundaries": boundaries,
        "expected": {
            "speed_up": round(split.data_parallel_seconds / split.seconds_per_minibatch, 2),
            "bytes_fewer": round(1 - split.bytes_per_minibatch / split.data_parallel_bytes, 4),
        },
        "rows": rows,
        "speed_up": round(speed_up, 2),
        "bytes_fewer": round(bytes_fewer, 4),
    }


def split_on(lab: Lab, args: argparse.Namespace) -> Partition:
    """Time the layers on these hosts, and split them into stages."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        file.write_text(json.dumps(run(lab, "profile", args)))
        chain = read_profile(file)
    found = partition(chain, [Level(machines=args.hosts, bandwidth_bytes_per_s=args.rate_mbit * MBIT)])
    for stage in found.stages:
        names = [layer.name for layer in chain.layers[stage.first : stage.last + 1]]
        duration = f"{stage.seconds * 1e3:.0f} ms per minibatch"
        print(f"stage on {stage.replicas} host(s): layers {names[0]} to {names[-1]}, {duration}", flush=True)
    if found.is_data_parallel:
        links = f"{args.hosts} hosts at {args.rate_mbit:g} Mbit/s"
        sys.exit(f"bench/pipeline.py: data parallelism is best on {links}; lower --rate-mbit")
    return found


def run(lab: Lab, method: str, args: argparse.Namespace, **stages: Any) -> dict[str, Any]:
    """Run one method on all hosts, and return what the first host wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcome.json"
        settings = Settings(
            method=method,
            data="synthetic" if args.quick else "cifar10",
            folder=args.data,
            batch=args.batch,
            warm_up=(1 if args.quick else 3) * args.hosts,
            minibatches=args.minibatches,
            seed=args.seed,
            widths=QUICK_WIDTHS if args.quick else WIDTHS,
            out=str(out),
            **{"boundaries": (), "replicas": (), **stages},
        )
        lines: list[str] = []
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(asdict(settings))]
        lab.run(command, show=lambda host, line: lines.append(f"{host}: {line}"), environment=ENVIRONMENT)
        if not out.exists():
            sys.exit("\n".join([*lines[-30:], f"{method} did not finish"]))
        found: dict[str, Any] = json.loads(out.read_text())
        return found


# On a host.


def work(settings: Settings) -> None:
    """Run one host's part."""
    os.environ.setdefault("RANK", os.environ["NODE_RANK"])
    os.environ.setdefault("WORLD_SIZE", os.environ["NNODES"])
    torch.set_num_threads(1)
    images = load_images(settings.data, Path(settings.folder))
    model = network(images, seed=settings.seed, widths=settings.widths)
    dist.init_process_group("gloo", timeout=PATIENCE)
    found = timed_layers(model, images, settings) if settings.method == "profile" else train(model, images, settings)
    if dist.get_rank() == 0:
        Path(settings.out).write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # destructors would wait for peers that have gone


def timed_layers(model: nn.Module, images: ImageSet, settings: Settings) -> dict[str, Any]:
    """Profile on all hosts at once, as busy as in training."""
    inputs, targets = next(minibatches(images, settings))
    layers = profile(model, inputs, loss=lambda output: nn.functional.cross_entropy(output, targets))
    return json.loads(layers.to_json())


def train(model: nn.Module, images: ImageSet, settings: Settings) -> dict[str, Any]:
    """Train on all minibatches, and return the figures."""
    stream = minibatches(images, settings)
    trainer = TRAINERS[settings.method](model, next(stream)[0], settings)
    run_through(trainer, itertools.islice(stream, settings.warm_up))
    dist.barrier()
    sent, start = sent_bytes(), time.perf_counter()
    losses = run_through(trainer, itertools.islice(stream, settings.minibatches))
    dist.barrier()
    seconds, sent = time.perf_counter() - start, sent_bytes() - sent
    last = losses[-(len(losses) // 4) :]
    totals = torch.tensor([sent, sum(last), len(last)], dtype=torch.float64)
    dist.all_reduce(totals)
    return {
        "seconds": seconds,
        "images_per_s": settings.minibatches * settings.batch / seconds,
        "sent_bytes": int(totals[0]),
        "loss": float(totals[1] / totals[2]),
    }


def run_through(trainer: Trainer, stream: Minibatches) -> list[float]:
    """Train on a stream of minibatches, and return this host's losses."""
    if trainer.is_dealt_out:
        stream = itertools.islice(stream, dist.get_rank(), None, dist.get_world_size())
    losses = [loss for inputs, targets in stream if (loss := trainer.step(inputs, targets)) is not None]
    trainer.finish()
    return [loss.item() for loss in losses]


def with_ddp(model: nn.Module, _example: Tensor, _settings: Settings) -> Trainer:
    wrapped = DistributedDataParallel(model)
    optimizer = sgd(wrapped.parameters())

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(wrapped(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return Trainer(step=step, finish=lambda: None, is_dealt_out=True)


def with_bulk(model: nn.Module, _example: Tensor, _settings: Settings) -> Trainer:
    parallel = DataParallel(model, sgd(model.parameters()))

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        parallel.step()
        return loss.detach()

    return Trainer(step=step, finish=parallel.synchronize, is_dealt_out=True)


def with_pipedream(model: nn.Module, example: Tensor, settings: Settings) -> Trainer:
    pipeline = Pipeline(
        cut(model, example, settings.boundaries),
        sgd,
        loss=nn.CrossEntropyLoss(),
        schedule=PipeDream(),
        replicas=settings.replicas,
    )
    return Trainer(step=pipeline.step, finish=pipeline.drain, is_dealt_out=False)


TRAINERS: dict[str, Callable[[nn.Module, Tensor, Settings], Trainer]] = {
    "ddp": with_ddp,
    "bulk": with_bulk,
    "pipedream": with_pipedream,
}


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)


def minibatches(images: ImageSet, settings: Settings) -> Minibatches:
    """Return an endless stream of minibatches, the same on every host."""
    batches = Batches(images=images, rank=0, workers=1, batch=settings.batch, seed=settings.seed, augment=False)
    return itertools.chain.from_iterable(batches.epoch(number) for number in itertools.count())


def sent_bytes() -> int:
    """Return the bytes this host has sent, by the kernel's counters."""
    return sum(int((cable / "statistics" / "tx_bytes").read_text()) for cable in CABLES.iterdir() if cable.name != "lo")


# Output.


def describe(row: dict[str, Any]) -> str:
    """Format one line."""
    return (
        f"{row['method']:9} {row['seconds']:7.1f} s  {row['images_per_s']:6.1f} images/s"
        f" (expected {row['expected_images_per_s']:6.1f})  {row['sent_bytes'] / 1e6:8.1f} MB"
        f" (expected {row['expected_bytes'] / 1e6:8.1f})  loss {row['loss']:.3f}"
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(Path.home() / ".cache/sandtable/data"), help="directory of the data sets")
    parser.add_argument("--hosts", type=int, help="default 4")
    parser.add_argument(
        "--rate-mbit", type=float, default=100.0, help="rate of each host's link, each way (default 100)"
    )
    parser.add_argument("--cores", type=float, default=2.0, help="total processors of all hosts (default 2)")
    parser.add_argument("--batch", type=int, default=32, help="images per minibatch (default 32)")
    parser.add_argument("--minibatches", type=int, help="total over all hosts (default 120)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="2 hosts, a smaller net, 12 made-up minibatches")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.hosts = args.hosts or (2 if args.quick else 4)
    args.minibatches = args.minibatches or (12 if args.quick else 120)
    args.minibatches = max(1, args.minibatches // args.hosts) * args.hosts
    return args


if __name__ == "__main__":
    main()
