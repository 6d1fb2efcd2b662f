"""What the processes of the tests of Downpour SGD do: a regression for numbers, a classification for skill."""

import time
from pathlib import Path
from typing import Any

import torch
from tests.methods.server_job import store_at
from tests.methods.server_tasks import loss_of, make_model, wait_until, weights_of
from torch import Tensor, nn

from sandtable.methods.server import Asynchronous, Checkpoints, Downpour, ParameterServer, Role, ServerReport, serve

RATE = 0.05
NUM_CLASSES, NUM_FEATURES, NUM_TRAIN, NUM_TEST = 4, 10, 2000, 4000


def make_sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=RATE)


def make_adagrad(named: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(named, lr=0.05)


def make_slow_sgd(named: Any) -> torch.optim.Optimizer:
    """Make an SGD whose every update takes a tenth of a second."""
    optimizer = make_sgd(named)
    optimizer.register_step_pre_hook(lambda *_: time.sleep(0.1))
    return optimizer


def make_classifier() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(NUM_FEATURES, 32), nn.Tanh(), nn.Linear(32, NUM_CLASSES))


def make_samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Make four overlapping clouds on curved ground: no classifier is right about every sample."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=torch.Generator().manual_seed(6))
    classes = torch.randint(NUM_CLASSES, (count,), generator=generator)
    points = 0.8 * centres[classes] + torch.randn(count, NUM_FEATURES, generator=generator)
    return points + 0.3 * points.roll(1, dims=1).square(), classes


def accuracy_of(model: nn.Module) -> float:
    inputs, classes = make_samples(NUM_TEST, seed=8)
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == classes).double().mean())


def run_server(
    port: int,
    shard: int,
    exchange: ParameterServer,
    workers: int,
    factory: Any = make_sgd,
    make: Any = make_model,
    checkpoints: Path | None = None,
) -> ServerReport:
    keep = None if checkpoints is None else Checkpoints(directory=checkpoints, every=1)
    return serve(
        make(),
        factory,
        exchange=exchange,
        sync=Asynchronous(),
        checkpoints=keep,
        store=store_at(port),
        role=Role(shard=shard, num_workers=workers),
    )


def run_replica(
    port: int, worker: int, exchange: ParameterServer, steps: int, options: dict[str, Any], pause_s: float = 0.0
) -> dict[str, Any]:
    """Train the regression on the whole batch; return the weights on joining and after each step."""
    store, model = store_at(port), make_model()
    with Downpour(model, exchange=exchange, lr=RATE, store=store, worker=worker, **options) as downpour:
        weights = [weights_of(model)]
        began = time.monotonic()
        for _ in range(steps):
            loss_of(model).backward()
            time.sleep(pause_s)
            downpour.step()
            weights.append(weights_of(model))
            store.add(f"steps-{worker}", 1)
        seconds = time.monotonic() - began
        counters = downpour.counters
    return {"weights": weights, "counters": counters, "seconds": seconds, "after": downpour.counters}


def run_cooling_replica(port: int, exchange: ParameterServer, rates: list[float]) -> Tensor:
    """Take a step at each of the rates, on servers and locally, as a scheduler would set them."""
    store, model = store_at(port), make_model()
    optimizer = make_sgd(model.parameters())
    options: dict[str, Any] = {"lr": RATE, "optimizer": optimizer, "overlap": False}
    with Downpour(model, exchange=exchange, store=store, worker=0, **options) as downpour:
        for rate in rates:
            optimizer.param_groups[0]["lr"] = downpour.lr = rate
            loss_of(model).backward()
            downpour.step()
    return weights_of(model)


def run_interrupted_replica(port: int, exchange: ParameterServer, steps: int, options: dict[str, Any]) -> Tensor:
    """Run as `run_replica`, but halfway save the state, drop everything, and resume."""
    store, model = store_at(port), make_model()
    first = Downpour(model, exchange=exchange, lr=RATE, store=store, worker=0, **options)
    for _ in range(steps // 2):
        loss_of(model).backward()
        first.step()
    state, local = first.state_dict(), {name: value.clone() for name, value in model.state_dict().items()}
    first.close()
    model = make_model()
    with Downpour(model, exchange=exchange, lr=RATE, store=store, worker=0, **options) as second:
        second.load_state_dict(state)
        model.load_state_dict(local)
        for _ in range(steps - steps // 2):
            loss_of(model).backward()
            second.step()
    return weights_of(model)


def run_learner(port: int, worker: int, exchange: ParameterServer, num_workers: int, steps: int) -> float:
    """Train the classification on this worker's quarter of the samples; return the servers' final accuracy."""
    store, model = store_at(port), make_classifier()
    inputs, classes = make_samples(NUM_TRAIN, seed=7)
    mine = torch.arange(worker, NUM_TRAIN, num_workers)
    generator = torch.Generator().manual_seed(worker)
    options: dict[str, Any] = {"n_fetch": 4, "n_push": 4, "warm_start_steps": 40}
    with Downpour(model, exchange=exchange, lr=0.02, store=store, worker=worker, **options) as downpour:
        for step in range(steps):
            chosen = mine[torch.randint(len(mine), (32,), generator=generator)]
            nn.functional.cross_entropy(model(inputs[chosen]), classes[chosen]).backward()
            downpour.step()
            store.add(f"steps-{worker}", 1)
            if step == steps // 4:
                # Nobody has finished when somebody is killed early on.
                wait_until(store, "go on", 1)
        downpour.synchronize()
    return accuracy_of(model)
