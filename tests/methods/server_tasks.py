"""What the processes of the tests of parameter servers do: a small regression, and the ways to train it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.methods.server_job import store_at
from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from sandtable.methods.server import (
    Checkpoints,
    ParameterServer,
    Role,
    ServerClient,
    ServerCounters,
    ServerReport,
    ServerSync,
    serve,
)

NUM_SAMPLES, NUM_INPUTS = 32, 6
TIMEOUT_S = 20.0


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(NUM_INPUTS, 16), nn.Tanh(), nn.Linear(16, 3))


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(NUM_SAMPLES, NUM_INPUTS, generator=generator)
    return inputs, torch.tanh(inputs @ torch.randn(NUM_INPUTS, 3, generator=generator))


def loss_of(model: nn.Module, worker: int = 0, num_workers: int = 1) -> Tensor:
    inputs, targets = make_data()
    return nn.functional.mse_loss(model(inputs[worker::num_workers]), targets[worker::num_workers])


def make_sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.1, momentum=0.9)


def make_plain_sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(named, lr=0.05)


def make_adam(named: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(named, lr=0.01, weight_decay=0.1)


def make_adagrad(named: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(named, lr=0.1)


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def settings(shards: int, timeout_s: float = TIMEOUT_S) -> ParameterServer:
    return ParameterServer(shards=shards, timeout_s=timeout_s)


def wait_until(store: Store, key: str, value: int) -> None:
    deadline = time.monotonic() + 30
    while store.add(key, 0) < value:
        assert time.monotonic() < deadline, f"{key} did not reach {value}"
        time.sleep(0.01)


def run_server(
    port: int,
    shard: int,
    exchange: ParameterServer,
    workers: int,
    sync: ServerSync,
    optimizer: Any = make_sgd,
    checkpoints: tuple[Path, int] | None = None,
    compression: Any = None,
) -> ServerReport:
    return serve(
        make_model(),
        optimizer,
        exchange=exchange,
        sync=sync,
        compression=compression,
        checkpoints=None if checkpoints is None else Checkpoints(directory=checkpoints[0], every=checkpoints[1]),
        store=store_at(port),
        role=Role(shard=shard, num_workers=workers),
    )


def run_worker(
    port: int,
    worker: int,
    exchange: ParameterServer,
    num_workers: int,
    sync: ServerSync,
    steps: int,
    pause_s: float = 0.0,
    compression: Any = None,
    hold: tuple[int, str, int] | None = None,
) -> dict[str, Any]:
    """Train for `steps`, counted in the store as `steps-<worker>`; return weights, losses and counters.

    With `hold` = (step, key, value) it stands still before that step until `key` of the store has reached `value`.
    """
    store = store_at(port)
    torch.manual_seed(100 + worker)
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(worker)  # Replaced by the servers' weights when the worker joins.
    client = ServerClient(model, sync=sync, exchange=exchange, compression=compression, store=store, worker=worker)
    store.add(f"joined-{worker}", 1)
    first_clock, began = client.clock, time.monotonic()
    losses = [loss_of(model).item()]
    for step in range(steps):
        if hold is not None and step == hold[0]:
            wait_until(store, hold[1], hold[2])
        loss_of(model, worker, num_workers).backward()
        time.sleep(pause_s)
        client.step()
        losses.append(loss_of(model).item())
        store.add(f"steps-{worker}", 1)
    seconds = time.monotonic() - began
    client.done()
    return {
        "weights": weights_of(model),
        "losses": losses,
        "counters": client.counters,
        "cost": client.cost,
        "clock": client.clock,
        "first_clock": first_clock,
        "seconds": seconds,
    }


def run_scheduled_worker(port: int, exchange: ParameterServer, sync: ServerSync, steps: int) -> Tensor:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    with ServerClient(model, optimizer, sync=sync, exchange=exchange, store=store_at(port), worker=0) as client:
        for _ in range(steps):
            loss_of(model).backward()
            client.step()
            scheduler.step()
    return weights_of(model)


def run_downpour_worker(
    port: int, worker: int, exchange: ParameterServer, sync: ServerSync, steps: int
) -> tuple[Tensor, ServerCounters]:
    model = make_model()
    parameters = list(model.parameters())
    with ServerClient(model, sync=sync, exchange=exchange, store=store_at(port), worker=worker) as client:
        for step in range(1, steps + 1):
            loss_of(model, worker, 2).backward()
            if step % 2 == 0:
                client.push([parameter.grad for parameter in parameters])
                model.zero_grad()
            if step % 3 == 0:
                client.pull()
        client.synchronize()
        counters = client.counters
    return weights_of(model), counters


class OddModel(nn.Module):
    """Everything that is unusual about parameters, in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4, sparse=True)
        self.convolution = nn.Conv2d(2, 3, 3, padding=1)
        self.convolution.weight.data = self.convolution.weight.data.to(memory_format=torch.channels_last)
        self.wide = nn.Linear(3, 5).double()
        self.unused = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 2)
        self.frozen.requires_grad_(False)

    def forward(self, words: Tensor) -> Tensor:
        seen = self.frozen(self.embedding(words))  # batch x 6 x 2
        picture = seen.transpose(1, 2).reshape(-1, 2, 2, 3)
        answer: Tensor = self.wide(self.convolution(picture).mean(dim=(2, 3)).double())
        return answer


def make_odd_model() -> OddModel:
    torch.manual_seed(3)
    return OddModel()


def odd_loss(model: nn.Module, worker: int, num_workers: int) -> Tensor:
    words = torch.arange(48).reshape(8, 6) % 7
    answer: Tensor = (model(words[worker::num_workers]) - 1).square().mean()
    return answer


def run_odd_server(port: int, shard: int, exchange: ParameterServer, sync: ServerSync) -> ServerReport:
    store = store_at(port)
    return serve(
        make_odd_model(), make_adam, exchange=exchange, sync=sync, store=store, role=Role(shard=shard, num_workers=2)
    )


def run_odd_worker(port: int, worker: int, exchange: ParameterServer, sync: ServerSync, steps: int) -> list[Tensor]:
    model = make_odd_model()
    with ServerClient(model, sync=sync, exchange=exchange, store=store_at(port), worker=worker) as client:
        for _ in range(steps):
            odd_loss(model, worker, 2).backward()
            client.step()
    return [parameter.detach().contiguous() for parameter in model.parameters()]


@dataclass(frozen=True)
class HalfForTest:
    """A compression as small as can be: two bytes a number."""

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return 2 * num_elements

    def codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> "HalfCodecForTest":
        return HalfCodecForTest()


class HalfCodecForTest:
    def encode(self, vector: Tensor) -> Tensor:
        return vector.to(torch.float16).view(torch.uint8)

    def decode(self, message: Tensor, out: Tensor) -> None:
        out.copy_(message.view(torch.float16))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        assert not state


def run_cut_off_worker(port: int, exchange: ParameterServer, sync: ServerSync) -> ServerCounters:
    """Train three steps, lose all connections, and come back when the other worker has continued alone."""
    store, model = store_at(port), make_model()
    with ServerClient(model, sync=sync, exchange=exchange, store=store, worker=1) as client:
        for step in range(6):
            loss_of(model, 1, 2).backward()
            if step == 3:
                for link in client._pool.connections:
                    link._drop()
                wait_until(store, "steps-0", 15)
                store.add("back", 1)
            client.step()
        return client.counters


def make_broken(named: Any) -> torch.optim.Optimizer:
    def fail(*_: Any) -> None:
        raise RuntimeError("this optimizer is broken")

    optimizer = torch.optim.SGD(named, lr=0.1)
    optimizer.register_step_pre_hook(fail)
    return optimizer
