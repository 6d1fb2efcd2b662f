"""Compare our methods with those of torch and others: time to a given accuracy and bytes, on the same slow links.

    sudo python bench/side_by_side.py --data DATA                 # 4 and 8 hosts at 100 Mbit/s
    sudo python bench/side_by_side.py --data DATA --hosts 4 --only ddp bulk best
    sudo python bench/side_by_side.py --data DATA --only-pairs    # step times only, a quarter of an hour
    sudo python bench/side_by_side.py --quick                     # ddp, bulk and best on 2 hosts, made-up images

Every method trains the same network on the same images in the same order, with the same optimizer and a constant rate,
on a lab on this machine (`sandtable.lab`). DDP trains first, for `--steps`; the target is its final accuracy less half
a point. Every other method trains until it reaches the target, for at most three times as many steps. Accuracy is that
of the mean of all replicas; the clock stops while it is measured. Bytes are the kernel's counts on the hosts' links.

The speed of a machine varies, so step times are compared separately: each of our methods and its counterpart train in
turns in one job, a few steps each, and the ratio is the median over turns.

torchft (LocalSGD, DiLoCo) and decent-dp take part if they are installed:
`pip install -c constraints.txt torchft decent-dp`. The last line is a JSON object:

rows      hosts, method, seconds until it reached the target or gave up, whether it reached it, step_s, steps, accuracy,
          bytes sent per host
pairs     hosts, method, counterpart, ratio of our step time to the counterpart's, in turns
slowest   the largest of these ratios where the counterpart is torch's own
speed_up  DDP's time to the target over that of our best method, by number of hosts
skipped   instead of all others: why no lab can be built here
"""

import argparse
import importlib.util
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
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from sandtable.errors import SandtableError
from sandtable.lab import Lab, LabPlan, missing
from sandtable.methods import data
from sandtable.methods.server import own_host
from sandtable.study.batches import Batches
from sandtable.study.data import load_images
from sandtable.study.evaluation import evaluate
from sandtable.study.worker_hosts import ENVIRONMENT

MBIT = 10**6 / 8
RATE, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 5e-4
PERIOD = 16
"""Steps between exchanges, for all methods with local steps."""
TURNS, QUICK_TURNS = 9, 2
"""Turns of two methods, of one period each, after a first turn that does not count."""
QUICK_METHODS = ("ddp", "bulk", "best")
CABLES = Path("/sys/class/net")
LIGHTHOUSE = 29510
PATIENCE = timedelta(minutes=5)

Step = Callable[[], None]
"""Called after a backward pass: exchanges what is due, steps, clears the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of every worker."""

    method: str
    data: str
    folder: str
    batch: int
    steps: int
    every: int
    turns: int
    seed: int
    target: float | None
    out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The figures of one method."""

    steps: int
    seconds: float
    step_s: float
    accuracy: float
    reached: bool
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two methods that took turns; `ratio` is our step time over the counterpart's."""

    hosts: int
    method: str
    counterpart: str
    ratio: float


def network(num_classes: int, shape: tuple[int, int, int], seed: int) -> nn.Module:
    """Build a net bound by its links: 0.7 million multiplications, 533,000 parameters."""
    channels, height, width = shape
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, num_classes),
    )


# Methods. Each takes a model and returns the module to call with a batch, and the step after its backward pass.

Made = tuple[nn.Module, Step]


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True)


def stepping(optimizer: Any) -> Step:
    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ddp(model: nn.Module, hook: Callable[[DistributedDataParallel], None] | None = None) -> Made:
    wrapped = DistributedDataParallel(model)
    if hook is not None:
        hook(wrapped)
    return wrapped, stepping(sgd(wrapped.parameters()))


def ddp_fp16(model: nn.Module) -> Made:
    return ddp(model, lambda wrapped: wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook))


def ddp_power_sgd(model: nn.Module) -> Made:
    # One bucket: with several, the order of the hook's exchanges differs between ranks, and gloo aborts.
    dist._DEFAULT_FIRST_BUCKET_BYTES = 25 << 20  # type: ignore[attr-defined]
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    return ddp(model, lambda wrapped: wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook))


def ddp_post_local(model: nn.Module) -> Made:
    state = post_localSGD_hook.PostLocalSGDState(
        process_group=None, subgroup=None, start_localSGD_iter=PERIOD, post_local_gradient_allreduce=False
    )
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=PERIOD)
    return wrapped, stepping(PostLocalSGDOptimizer(optim=sgd(wrapped.parameters()), averager=averager))


def torchft_manager() -> Any:
    """Make each rank a replica group of its own, with a lighthouse on the first."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer

    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        KEPT.append(LighthouseServer(bind=f"0.0.0.0:{LIGHTHOUSE}", min_replicas=size, join_timeout_ms=60_000))
    dist.barrier()
    KEPT.append(dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False))
    return Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=lambda _: None,
        state_dict=dict,
        min_replica_size=size,
        use_async_quorum=False,
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        rank=0,
        world_size=1,
        store_addr=own_host(),
        store_port=KEPT[-1].port,
        lighthouse_addr=f"http://{os.environ['MASTER_ADDR']}:{LIGHTHOUSE}",
        replica_id=f"rank{rank}",
        hostname=own_host(),
        init_sync=False,
    )


def torchft_local_sgd(model: nn.Module) -> Made:
    from torchft.local_sgd import LocalSGD

    optimizer = sgd(model.parameters())
    LocalSGD(torchft_manager(), model, optimizer, sync_every=PERIOD).__enter__()
    return model, stepping(optimizer)


def torchft_diloco(model: nn.Module) -> Made:
    from torchft.local_sgd import DiLoCo

    optimizer = sgd(model.parameters())
    outer = torch.optim.SGD(model.parameters(), lr=OUTER.lr, momentum=OUTER.momentum, nesterov=True)
    DiLoCo(torchft_manager(), [model], optimizer, outer, sync_every=PERIOD).__enter__()
    return model, stepping(optimizer)


def decent(model: nn.Module) -> Made:
    """Gossip weights with both neighbours in turn, during the next backward pass; hooks make the step."""
    from decent_dp.ddp import DecentralizedDataParallel

    wrapped = DecentralizedDataParallel(model, lambda named: sgd([p for _, p in named]), topology="ring")
    return wrapped, lambda: None


def ours(**axes: Any) -> Callable[[nn.Module], Made]:
    """Return a maker of `DataParallel` with these axes."""

    def make(model: nn.Module) -> Made:
        return model, data.DataParallel(model, sgd(model.parameters()), **axes).step

    return make


def ring_gossip(model: nn.Module) -> Made:
    """Gossip as decent-dp does: one message per step, to the next on the ring, overlapping the passes."""
    size = dist.get_world_size()
    matrix = (torch.eye(size) + torch.eye(size).roll(1, dims=0)) / 2
    return ours(sync=data.LocalSGD(1, average="before"), exchange=data.Gossip(matrix))(model)


OUTER = data.Nesterov(lr=1.0, momentum=0.6)
KEPT: list[Any] = []
"""Objects that must live as long as the process."""

THEIRS: dict[str, tuple[Callable[[nn.Module], Made], str]] = {
    "ddp": (ddp, "torch"),
    "ddp-fp16": (ddp_fp16, "torch"),
    "ddp-power-sgd": (ddp_power_sgd, "torch"),
    "ddp-post-local": (ddp_post_local, "torch"),
    "torchft-local-sgd": (torchft_local_sgd, "torchft"),
    "torchft-diloco": (torchft_diloco, "torchft"),
    "decent-dp": (decent, "decent_dp"),
}
"""The maker of each method, and the module it needs."""

OURS: dict[str, tuple[Callable[[nn.Module], Made], str]] = {
    "bulk": (ours(), "ddp"),
    "half": (ours(compression=data.Half()), "ddp-fp16"),
    "power-sgd": (ours(compression=data.PowerSGD(4)), "ddp-power-sgd"),
    "post-local": (ours(sync=data.PostLocalSGD(switch_at=PERIOD, period=PERIOD)), "ddp-post-local"),
    "local-sgd": (ours(sync=data.LocalSGD(PERIOD)), "torchft-local-sgd"),
    "diloco": (ours(sync=data.DiLoCo(PERIOD)), "torchft-diloco"),
    "gossip": (ring_gossip, "decent-dp"),
    "best": (
        ours(
            sync=data.LocalSGD(4),
            compression=data.TopK(0.1, values="two-bit"),
        ),
        "ddp",
    ),
}
"""The maker of each method, and its counterpart."""


def main() -> None:
    """Compare the methods on every lab and print the figures."""
    args = parse()
    if args.worker:
        work(Settings(**json.loads(args.worker)))
        return
    if reason := missing():
        print(json.dumps({"skipped": reason}))
        return
    rows: list[dict[str, Any]] = []
    pairs: list[Pair] = []
    try:
        for hosts in args.hosts:
            bandwidth = args.rate_mbit * MBIT
            with Lab(LabPlan.uniform(hosts, bandwidth_bytes_per_s=bandwidth, cores=args.cores / hosts)) as lab:
                pairs += in_turns(lab, hosts, args)
                if not args.only_pairs:
                    rows += side_by_side(lab, hosts, args)
    except SandtableError as error:
        sys.exit(f"bench/side_by_side.py: {error}")
    found = {
        "rows": rows,
        "pairs": [asdict(pair) for pair in pairs],
        "slowest": max((pair.ratio for pair in pairs if THEIRS[pair.counterpart][1] == "torch"), default=None),
        "speed_up": speed_ups(rows),
    }
    print(json.dumps(found))


def in_turns(lab: Lab, hosts: int, args: argparse.Namespace) -> list[Pair]:
    """Compare the step times of our methods with those of their installed counterparts."""
    pairs: list[Pair] = []
    for name, (_, counterpart) in OURS.items():
        if name == "best" or name not in args.only or not is_installed(counterpart):
            continue
        ratio = run(lab, f"{counterpart} {name}", None, args)["ratio"]
        pairs.append(Pair(hosts=hosts, method=name, counterpart=counterpart, ratio=round(ratio, 3)))
        print(f"{hosts} hosts  {name:18} {ratio:7.3f} of the time of {counterpart}", flush=True)
    return pairs


def is_installed(name: str) -> bool:
    return name in OURS or importlib.util.find_spec(THEIRS[name][1]) is not None


def side_by_side(lab: Lab, hosts: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Train by all methods on one lab, DDP first."""
    rows: list[dict[str, Any]] = []
    target: float | None = None
    for name in ["ddp", *(one for one in [*THEIRS, *OURS] if one != "ddp" and one in args.only)]:
        if not is_installed(name):
            print(f"{hosts} hosts  {name:18} skipped: {THEIRS[name][1]} is not installed", flush=True)
            continue
        found = Outcome(**run(lab, name, target, args))
        target = target if target is not None else found.accuracy - 0.005
        rows.append({"hosts": hosts, "method": name, **asdict(found)})
        print(
            f"{hosts} hosts  {name:18} {found.seconds:7.1f} s to {found.accuracy:6.2%}"
            f"{'' if found.reached else ' (not reached)'}  {found.step_s * 1e3:7.1f} ms per step"
            f"  {found.sent_bytes / 1e6:8.1f} MB per host",
            flush=True,
        )
    return rows


def run(lab: Lab, name: str, target: float | None, args: argparse.Namespace) -> dict[str, Any]:
    """Train by one method on all hosts, or by two in turns, and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            method=name,
            data="synthetic" if args.quick else "cifar10",
            folder=args.data,
            batch=args.batch,
            steps=args.steps * (1 if target is None else 3),
            every=args.every,
            turns=args.turns,
            seed=args.seed,
            target=target,
            out=f"{folder}/outcome.json",
        )
        lines: list[str] = []
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(asdict(settings))]
        lab.run(command, show=lambda host, line: lines.append(f"{host}: {line}"), environment=ENVIRONMENT)
        if not Path(settings.out).exists():
            sys.exit("\n".join([*lines[-30:], f"{name} did not finish"]))
        found: dict[str, Any] = json.loads(Path(settings.out).read_text())
        return found


def work(settings: Settings) -> None:
    """Run one host's part: one method, or two in turns."""
    os.environ.setdefault("RANK", os.environ["NODE_RANK"])
    os.environ.setdefault("WORLD_SIZE", os.environ["NNODES"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    images = load_images(settings.data, Path(settings.folder))
    batches = Batches(
        images=images,
        rank=dist.get_rank(),
        workers=dist.get_world_size(),
        batch=settings.batch,
        seed=settings.seed,
        augment=False,
    )
    names = settings.method.split()
    trainings = [
        Training(name, network(images.num_classes, images.shape, settings.seed), endless(batches)) for name in names
    ]
    found = (
        asdict(train(trainings[0], batches, settings))
        if len(names) == 1
        else {"ratio": ratio(*trainings, turns=settings.turns)}
    )
    if dist.get_rank() == 0:
        Path(settings.out).write_text(json.dumps(found))
    dist.barrier()
    # Threads of other libraries, which would wait for peers that have gone, end with the process.
    os._exit(0)


class Training:
    """One model, trained by one method."""

    def __init__(self, method: str, model: nn.Module, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
        make, _ = {**THEIRS, **OURS}[method]
        self.model = model
        self._batches = batches
        self._forward, self._step = make(model)

    def seconds_of(self, num_steps: int) -> float:
        """Start together with all hosts, and return how long this one takes."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(num_steps):
            inputs, targets = next(self._batches)
            nn.functional.cross_entropy(self._forward(inputs), targets).backward()  # type: ignore[no-untyped-call]
            self._step()
        return time.perf_counter() - start


def train(training: Training, batches: Batches, settings: Settings) -> Outcome:
    """Train until the target is reached or the steps are used up."""
    seconds, sent, steps, accuracy = 0.0, 0, 0, 0.0
    reached = False
    while steps < settings.steps and not reached:
        num_steps = min(settings.every, settings.steps - steps)
        sent_before = sent_bytes()
        seconds += training.seconds_of(num_steps)
        sent += sent_bytes() - sent_before
        steps += num_steps
        accuracy = evaluate(training.model, batches).accuracy
        reached = settings.target is not None and accuracy >= settings.target
    seconds, most_sent = most(seconds), int(most(float(sent)))
    return Outcome(
        steps=steps,
        seconds=seconds,
        step_s=seconds / steps,
        accuracy=accuracy,
        reached=reached or settings.target is None,
        sent_bytes=most_sent,
    )


def ratio(theirs: Training, ours: Training, *, turns: int) -> float:
    """Return our step time over theirs, measured in turns."""
    ratios = []
    for _ in range(1 + turns):
        their_s = most(theirs.seconds_of(PERIOD))
        ratios.append(most(ours.seconds_of(PERIOD)) / their_s)
    return median(ratios[1:])


def most(value: float) -> float:
    """Return the maximum over all hosts."""
    values = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return float(values)


def endless(batches: Batches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for number in itertools.count():
        yield from batches.epoch(number)


def sent_bytes() -> int:
    """Return the bytes this host has sent, by the kernel's counters."""
    return sum(int((cable / "statistics" / "tx_bytes").read_text()) for cable in CABLES.iterdir() if cable.name != "lo")


def speed_ups(rows: list[dict[str, Any]]) -> dict[str, float]:
    found = {}
    for hosts in sorted({row["hosts"] for row in rows}):
        same = [row for row in rows if row["hosts"] == hosts and row["reached"]]
        baseline = next(row["seconds"] for row in same if row["method"] == "ddp")
        ours = [row["seconds"] for row in same if row["method"] in OURS]
        if ours:
            found[str(hosts)] = round(baseline / min(ours), 2)
    return found


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(Path.home() / ".cache/sandtable/data"), help="directory of the data sets")
    parser.add_argument("--hosts", type=int, nargs="+", help="numbers of hosts (default 4 8)")
    parser.add_argument("--only", nargs="+", choices=[*THEIRS, *OURS], help="default: all")
    parser.add_argument("--only-pairs", action="store_true", help="step times only, no training to a target")
    parser.add_argument("--rate-mbit", type=float, default=100.0)
    parser.add_argument("--cores", type=float, default=2.0, help="total processors of all hosts (default 2)")
    parser.add_argument("--batch", type=int, default=32, help="images per step and host (default 32)")
    parser.add_argument("--steps", type=int, default=400, help="steps of DDP (default 400)")
    parser.add_argument("--every", type=int, default=25, help="steps between evaluations (default 25)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="ddp, bulk and best on 2 hosts, made-up images, few steps")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.hosts = args.hosts or ([2] if args.quick else [4, 8])
    args.only = args.only or (QUICK_METHODS if args.quick else [*THEIRS, *OURS])
    args.turns = QUICK_TURNS if args.quick else TURNS
    if args.quick:
        args.steps, args.every, args.rate_mbit = 30, 10, 1000.0
    return args


if __name__ == "__main__":
    main()
