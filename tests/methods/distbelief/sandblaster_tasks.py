"""What the processes of the tests of Sandblaster do: one small network, trained on the whole batch."""

import time
from pathlib import Path
from typing import Any

import torch
from tests.methods.server_job import Job, Process, store_at
from torch import Tensor, nn

from sandtable.methods import server
from sandtable.methods.server import (
    LBFGS,
    Checkpoints,
    CoordinatorReport,
    LineSearch,
    Progress,
    Sandblaster,
    VectorServerReport,
    coordinate,
    serve_vectors,
)

NUM_SAMPLES, PORTION_SIZE = 120, 7
NUM_PORTIONS = 18
TIMEOUT_S = 20.0


def make_settings(shards: int = 2, timeout_s: float = TIMEOUT_S) -> Sandblaster:
    return Sandblaster(shards=shards, timeout_s=timeout_s)


def make_lbfgs(iterations: int) -> LBFGS:
    """Make settings that search as SciPy does, to the last iteration."""
    return LBFGS(
        max_iterations=iterations, gradient_tolerance=0.0, loss_tolerance=0.0, search=LineSearch(decrease=1e-3)
    )


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(NUM_SAMPLES, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.tanh(inputs @ torch.randn(6, 3, generator=generator, dtype=torch.float64))


def loss_of(model: nn.Module, samples: range) -> Tensor:
    inputs, targets = make_data()
    chosen = slice(samples.start, samples.stop)
    return nn.functional.mse_loss(model(inputs[chosen]), targets[chosen], reduction="sum") / targets.numel()


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def run_coordinator(
    port: int, settings: Sandblaster, iterations: int, portion_size: int = PORTION_SIZE
) -> tuple[CoordinatorReport, list[float], float]:
    """Return the report, the loss after each iteration, and the seconds; count iterations in the store."""
    store, losses = store_at(port), []

    def note(progress: Progress) -> None:
        losses.append(progress.loss)
        store.add("iterations", 1)

    began = time.monotonic()
    report = coordinate(
        settings=settings,
        num_samples=NUM_SAMPLES,
        portion_size=portion_size,
        lbfgs=make_lbfgs(iterations),
        after=note,
        store=store,
    )
    return report, losses, time.monotonic() - began


def run_vector_server(
    port: int, shard: int, settings: Sandblaster, checkpoints: tuple[Path, int] | None = None
) -> VectorServerReport:
    keep = None if checkpoints is None else Checkpoints(directory=checkpoints[0], every=checkpoints[1])
    return serve_vectors(make_model(), settings=settings, checkpoints=keep, store=store_at(port), shard=shard)


def run_replica(port: int, replica: int, settings: Sandblaster, pause_s: float = 0.0) -> dict[str, Any]:
    """Run a replica that takes `pause_s` longer per portion, counted in the store as `portions-<replica>`."""
    store, model = store_at(port), make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(replica)  # Replaced by the servers' weights.

    def loss(model: nn.Module, samples: range) -> Tensor:
        time.sleep(pause_s)
        store.add(f"portions-{replica}", 1)
        return loss_of(model, samples)

    store.add(f"started-{replica}", 1)
    report = server.run_replica(model, loss, settings=settings, store=store, replica=replica)
    return {"weights": weights_of(model), "report": report}


def run_stranger(port: int, settings: Sandblaster) -> None:
    """Run a replica with another model."""
    model = nn.Linear(2, 2)
    server.run_replica(
        model, lambda model, samples: model(torch.ones(2)).sum(), settings=settings, store=store_at(port), replica=3
    )


def start_vector_servers(
    running: Job, settings: Sandblaster, checkpoints: tuple[Path, int] | None = None
) -> list[Process]:
    return [running.start(run_vector_server, shard, settings, checkpoints) for shard in range(settings.shards)]
