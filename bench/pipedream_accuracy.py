"""Measure what asynchronous 1F1B costs in accuracy: PipeDream against plain SGD on the same batches.

    python bench/pipedream_accuracy.py --data DATA               # CIFAR-10, 15 epochs, 20 minutes on two cores
    python bench/pipedream_accuracy.py --data DATA --only sgd 2-1-1 --epochs 5 --share 0.2
    python bench/pipedream_accuracy.py --data DATA --batch 100 --rate 0.03 --pipedream-rate 0.1
    python bench/pipedream_accuracy.py --quick                   # sgd and 2-1-1, an epoch of a few made-up images

Network, batches (with augmentation) and learning-rate schedule (warm-up, then cosine) are the study's. All runs start
from the same weights and train on the same batches. Rate and momentum may differ, since stale gradients tolerate less
of both: staleness acts like momentum (Mitliagkas et al., *Asynchrony begets Momentum*, 2016, arXiv:1605.09774).

sgd        one process, one model, one update per batch
1-1-1-1    four stages on four ranks: minibatches meet weights 3, 2, 1 and 0 updates old
2-1-1      three stages; two ranks share the first, take turns and average their gradients

All runs share this machine at the same time, one thread per rank: only accuracy is measured, on all test images after
every epoch, with the pipeline drained. The last line is a JSON object:

data, epochs, batch, share    the settings
rows                          run, rate, momentum, accuracy after the last epoch, accuracies after each, loss of the
                              last epoch, most_versions of the weights on any rank
points_behind                 by run: percentage points below plain SGD
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sandtable.methods.pipeline import PipeDream, Pipeline, cut
from sandtable.study.batches import Batches
from sandtable.study.data import load_images
from sandtable.study.model import build_model
from sandtable.study.settings import Training
from sandtable.study.worker_hosts import ENVIRONMENT

REPLICAS = {"sgd": (1,), "1-1-1-1": (1, 1, 1, 1), "2-1-1": (2, 1, 1)}
BOUNDARIES = {"sgd": (), "1-1-1-1": (3, 6, 9), "2-1-1": (3, 6)}
"""First layers of the later stages: second convolution, first dense layer (with its flattening), second."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of every rank of a run."""

    run: str
    data: str
    folder: str
    model: str
    batch: int
    epochs: int
    share: float
    seed: int
    rate: float
    momentum: float
    meeting: str
    out: str


def main() -> None:
    """Start all ranks, wait for them, and print their results."""
    args = parse()
    if args.worker:
        work(Settings(**json.loads(args.worker)))
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = [settings_of(run, args, folder) for run in args.only]
        ranks = [process for run_settings in settings for process in start(run_settings)]
        exit_codes = [process.wait() for process in ranks]
        if any(exit_codes):
            sys.exit("bench/pipedream_accuracy.py: a rank did not finish")
        rows = [json.loads(Path(run_settings.out).read_text()) for run_settings in settings]
    inputs = {name: getattr(args, name) for name in ("epochs", "batch", "share")}
    print(
        json.dumps(
            {
                "data": settings[0].data,
                **inputs,
                "rows": rows,
                "points_behind": points_behind(rows),
            }
        )
    )


def settings_of(run: str, args: argparse.Namespace, folder: str) -> Settings:
    return Settings(
        run=run,
        data="synthetic" if args.quick else "cifar10",
        folder=args.data,
        model="small-cnn",
        batch=args.batch,
        epochs=args.epochs,
        share=args.share,
        seed=args.seed,
        rate=args.rate if run == "sgd" else args.pipedream_rate,
        momentum=args.momentum if run == "sgd" else args.pipedream_momentum,
        meeting=f"{folder}/{run}.meeting",
        out=f"{folder}/{run}.json",
    )


def start(settings: Settings) -> list[subprocess.Popen[bytes]]:
    """Start the ranks of one run."""
    size = sum(REPLICAS[settings.run])
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(asdict(settings))]
    environment = {**os.environ, **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(size)}
    return [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(size)]


def points_behind(rows: list[dict[str, Any]]) -> dict[str, float]:
    accuracy = {row["run"]: row["accuracy"] for row in rows}
    baseline = accuracy.pop("sgd", None)
    return {run: round(100 * (baseline - value), 2) for run, value in accuracy.items()} if baseline else {}


# On a rank.


def work(settings: Settings) -> None:
    """Train, and write the results to a file."""
    torch.set_num_threads(1)
    images = load_images(settings.data, Path(settings.folder))
    batches = Batches(
        images=images,
        rank=0,
        workers=1,
        batch=settings.batch,
        seed=settings.seed,
        augment=Training().augment,
        share=settings.share,
    )
    model = build_model(settings.model, shape=images.shape, num_classes=images.num_classes, seed=settings.seed)
    runner = (Alone if settings.run == "sgd" else Staged)(model, next(batches.test_share())[0], settings)
    accuracies, loss = [], 0.0
    for epoch in range(settings.epochs):
        loss = mean([runner.step(*batch) for batch in scheduled(runner, batches, settings, epoch)])
        accuracies.append(accuracy_of(runner.predict, batches))
        if runner.is_reporter:
            print(f"{settings.run:8} epoch {epoch + 1:2}: loss {loss:.3f}, accuracy {accuracies[-1]:.2%}", flush=True)
    versions = runner.finish()
    if runner.is_reporter:
        row = {"run": settings.run, "rate": settings.rate, "momentum": settings.momentum, "accuracy": accuracies[-1]}
        rest = {"accuracies": accuracies, "loss": loss, "most_versions": versions}
        Path(settings.out).write_text(json.dumps({**row, **rest}))


def scheduled(runner: "Alone | Staged", batches: Batches, settings: Settings, epoch: int) -> Iterator[Batch]:
    """Yield the batches of an epoch, after setting the rate of each step."""
    training = Training(learning_rate=settings.rate, momentum=settings.momentum)
    for number, batch in enumerate(batches.epoch(epoch)):
        step = epoch * batches.steps_per_epoch + number
        rate = training.rate_at(step, steps_per_epoch=batches.steps_per_epoch, epochs=settings.epochs)
        for group in runner.optimizer.param_groups:
            group["lr"] = rate
        yield batch


def mean(losses: list[Tensor | None]) -> float:
    known = [loss for loss in losses if loss is not None]
    return float(torch.stack(known).mean()) if known else 0.0


def accuracy_of(predict: Callable[[Tensor], Tensor | None], batches: Batches) -> float:
    """Return the accuracy on the reporting rank; it is 0 elsewhere."""
    right = tested = 0
    for inputs, targets in batches.test_share():
        outputs = predict(inputs)
        right += 0 if outputs is None else int((outputs.argmax(1) == targets).sum())
        tested += len(targets)
    return right / tested


def sgd_of(settings: Settings) -> Callable[[Any], torch.optim.SGD]:
    """Return a factory of the optimizer; its rate is set at every step."""
    decay = Training().weight_decay
    return lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=settings.momentum, weight_decay=decay)


class Alone:
    """Plain SGD."""

    is_reporter = True

    def __init__(self, model: nn.Module, _example: Tensor, settings: Settings) -> None:
        self.model, self.optimizer = model, sgd_of(settings)(model.parameters())

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        return outputs

    def finish(self) -> int:
        return 1


class Staged:
    """PipeDream. The last rank, alone in the last stage, reports."""

    def __init__(self, model: nn.Module, example: Tensor, settings: Settings) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=f"file://{settings.meeting}", rank=rank, world_size=size)
        self.is_reporter = rank == size - 1
        self.pipeline = Pipeline(
            cut(model, example, BOUNDARIES[settings.run]),
            sgd_of(settings),
            loss=nn.CrossEntropyLoss(),
            schedule=PipeDream(),
            replicas=REPLICAS[settings.run],
        )
        self.step, self.predict = self.pipeline.step, self.pipeline.predict
        assert self.pipeline.optimizer is not None
        self.optimizer = self.pipeline.optimizer

    def finish(self) -> int:
        """Return the most versions of its weights that any rank held."""
        versions = torch.tensor(self.pipeline.most_versions_held)
        self.pipeline.close()
        dist.all_reduce(versions, op=dist.ReduceOp.MAX)
        dist.destroy_process_group()
        return int(versions)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(Path.home() / ".cache/sandtable/data"), help="directory of the data sets")
    parser.add_argument("--only", nargs="+", choices=[*REPLICAS], help="default: all")
    parser.add_argument("--epochs", type=int, help="default 15")
    parser.add_argument("--batch", type=int, default=32, help="images per minibatch (default 32)")
    parser.add_argument("--share", type=float, help="share of the training images to use (default 1)")
    parser.add_argument("--rate", type=float, default=0.01, help="peak rate of plain SGD")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of plain SGD")
    parser.add_argument("--pipedream-rate", type=float, default=0.08, help="peak rate of PipeDream")
    parser.add_argument("--pipedream-momentum", type=float, default=0.0, help="momentum of PipeDream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="sgd and 2-1-1, an epoch of a tenth of the made-up images")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.only = args.only or (["sgd", "2-1-1"] if args.quick else [*REPLICAS])
    args.epochs = args.epochs or (1 if args.quick else 15)
    args.share = args.share or (0.1 if args.quick else 1.0)
    return args


if __name__ == "__main__":
    main()
