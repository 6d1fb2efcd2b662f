"""What asynchronous 1F1B costs in accuracy: PipeDream against plain SGD, on the same images in the same order.

    python bench/pipedream_accuracy.py --data DATA               # CIFAR-10, 15 epochs, 20 minutes on two cores
    python bench/pipedream_accuracy.py --data DATA --only sgd 2-1-1 --epochs 5 --share 0.2
    python bench/pipedream_accuracy.py --data DATA --batch 100 --rate 0.03 --pipedream-rate 0.1
    python bench/pipedream_accuracy.py --quick                   # made-up images, 3 epochs, a minute

The study's net, batches (mirrored and moved images) and schedule (a rise, then a cosine). All runs start from the same
weights and are given the same batches. Rate and momentum may differ, since stale gradients bear less of both:
staleness works as momentum does (Mitliagkas et al., *Asynchrony begets Momentum*, 2016, arXiv:1605.09774).

sgd        one process, one model, one update a batch
1-1-1-1    four stages on four ranks: minibatches meet weights 3, 2, 1 and 0 updates old
2-1-1      three stages; two ranks share the first, take turns and average their gradients

All run at the same time over this machine's loopback, a thread a rank: only accuracy is measured. It is that of all
test images, after every epoch; the pipeline is emptied for it. The last line is a JSON object:

data, epochs, batch, share    what was asked
rows                          run, rate, momentum, accuracy after the last epoch, accuracies after each, the loss of the
                              last epoch, most_versions held by a rank
points_behind                 by run: how many points plain SGD ends above it
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
from sandtable.study.place import ENVIRONMENT
from sandtable.study.schedule import learning_rate
from sandtable.study.settings import Training

REPLICAS = {"sgd": (1,), "1-1-1-1": (1, 1, 1, 1), "2-1-1": (2, 1, 1)}
BOUNDARIES = {"sgd": (), "1-1-1-1": (3, 6, 9), "2-1-1": (3, 6)}
"""Layers at which stages begin: the second convolution, the first dense layer with its flattening, the second."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every rank of a run is told."""

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
    args = parse()
    if args.worker:
        work(Settings(**json.loads(args.worker)))
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = [settings_of(run, args, folder) for run in args.only]
        ranks = [process for each in settings for process in start(each)]
        exit_codes = [process.wait() for process in ranks]
        if any(exit_codes):
            sys.exit("bench/pipedream_accuracy.py: a rank did not finish")
        rows = [json.loads(Path(each.out).read_text()) for each in settings]
    asked = {name: getattr(args, name) for name in ("epochs", "batch", "share")}
    print(
        json.dumps(
            {
                "data": settings[0].data,
                **asked,
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
    """The ranks of one run."""
    size = sum(REPLICAS[settings.run])
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(asdict(settings))]
    environment = {**os.environ, **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(size)}
    return [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(size)]


def points_behind(rows: list[dict[str, Any]]) -> dict[str, float]:
    accuracy = {row["run"]: row["accuracy"] for row in rows}
    baseline = accuracy.pop("sgd", None)
    return {run: round(100 * (baseline - found), 2) for run, found in accuracy.items()} if baseline else {}


# In a rank.


def work(settings: Settings) -> None:
    """Train, and write down what came of it."""
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
        if runner.is_speaker:
            print(f"{settings.run:8} epoch {epoch + 1:2}: loss {loss:.3f}, accuracy {accuracies[-1]:.2%}", flush=True)
    versions = runner.finish()
    if runner.is_speaker:
        row = {"run": settings.run, "rate": settings.rate, "momentum": settings.momentum, "accuracy": accuracies[-1]}
        rest = {"accuracies": accuracies, "loss": loss, "most_versions": versions}
        Path(settings.out).write_text(json.dumps({**row, **rest}))


def scheduled(runner: "Alone | Staged", batches: Batches, settings: Settings, epoch: int) -> Iterator[Batch]:
    """The batches of an epoch, each with the rate of its step set."""
    training = Training(learning_rate=settings.rate, momentum=settings.momentum)
    for number, batch in enumerate(batches.epoch(epoch)):
        step = epoch * batches.steps_per_epoch + number
        rate = learning_rate(training, step=step, steps_per_epoch=batches.steps_per_epoch, epochs=settings.epochs)
        for group in runner.optimizer.param_groups:
            group["lr"] = rate
        yield batch


def mean(losses: list[Tensor | None]) -> float:
    known = [loss for loss in losses if loss is not None]
    return float(torch.stack(known).mean()) if known else 0.0


def accuracy_of(predict: Callable[[Tensor], Tensor | None], batches: Batches) -> float:
    """On the rank that speaks; elsewhere nothing is right."""
    right = tested = 0
    for inputs, targets in batches.test_share():
        outputs = predict(inputs)
        right += 0 if outputs is None else int((outputs.argmax(1) == targets).sum())
        tested += len(targets)
    return right / tested


def sgd_of(settings: Settings) -> Callable[[Any], torch.optim.SGD]:
    """The optimizer; its rate is set for every step."""
    decay = Training().weight_decay
    return lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=settings.momentum, weight_decay=decay)


class Alone:
    """Plain SGD."""

    is_speaker = True

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
    """PipeDream. The last rank holds the last stage alone, so it speaks."""

    def __init__(self, model: nn.Module, example: Tensor, settings: Settings) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=f"file://{settings.meeting}", rank=rank, world_size=size)
        self.is_speaker = rank == size - 1
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
        """Versions of its weights that a rank held at most."""
        versions = torch.tensor(self.pipeline.most_versions_held)
        self.pipeline.close()
        dist.all_reduce(versions, op=dist.ReduceOp.MAX)
        dist.destroy_process_group()
        return int(versions)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(Path.home() / ".cache/sandtable/data"), help="folder of the data sets")
    parser.add_argument("--only", nargs="+", choices=[*REPLICAS], default=[*REPLICAS])
    parser.add_argument("--epochs", type=int, help="15 unless given")
    parser.add_argument("--batch", type=int, default=32, help="images in a minibatch")
    parser.add_argument("--share", type=float, default=1.0, help="the part of the training images that is used")
    parser.add_argument("--rate", type=float, default=0.01, help="highest rate of plain SGD")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of plain SGD")
    parser.add_argument("--pipedream-rate", type=float, default=0.08, help="highest rate of PipeDream")
    parser.add_argument("--pipedream-momentum", type=float, default=0.0, help="momentum of PipeDream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="made-up images, 3 epochs")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.epochs = args.epochs or (3 if args.quick else 15)
    return args


if __name__ == "__main__":
    main()
