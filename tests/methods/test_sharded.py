"""FSDP2 with compressed gradients and weights, on real ranks."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.processes import run
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from sandtable.errors import MethodError
from sandtable.methods.data import (
    QSGD,
    Compression,
    Half,
    NoCompression,
    PowerSGD,
    Sharded,
    Sign,
    Threshold,
    TopK,
    compress_sharded,
)

WORLD = 2
STEPS = 20


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(13, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))


def make_batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step % 4)
    inputs = torch.randn(WORLD * 8, 13, generator=generator)
    return inputs, inputs[:, :3] - inputs[:, 3:6]


def sharded_model() -> Any:
    model = make_model()
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(model: nn.Module, steps: range, *, rank: int | None) -> float:
    """Return the loss of the last step, on all of each batch or the rank's part of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    loss = torch.zeros(())
    for step in steps:
        inputs, targets = make_batch(step)
        if rank is not None:
            inputs, targets = inputs[rank * 8 : rank * 8 + 8], targets[rank * 8 : rank * 8 + 8]
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in model.named_parameters()
    }


def run_sharded(
    gradients: Compression | None, weights: Compression | None
) -> tuple[dict[str, Tensor], float, int, int]:
    model = sharded_model()
    sharded = compress_sharded(model, gradients=gradients, weights=weights)
    loss = train(model, range(STEPS), rank=dist.get_rank())
    expected = 0
    if gradients is not None:
        expected = sum(
            STEPS * int(gradients.message_bytes(part.reduce_scatter.codecs[0].num_elements, torch.float32))
            for part in sharded._parts.values()
        )
    sent = sum(part.reduce_scatter.sent_bytes for part in sharded._parts.values())
    return weights_of(model), loss, sent, expected


def alone() -> tuple[dict[str, Tensor], float]:
    model = make_model()
    loss = train(model, range(STEPS), rank=None)
    return weights_of(model), loss


def test_lossless_equals_training_in_one_process() -> None:
    expected, _ = alone()
    results = run(WORLD, run_sharded, NoCompression(), NoCompression())
    for weights, _, sent, formula in results:
        assert sent == formula > 0
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-6)


LOSSY: list[tuple[Compression, Compression | None, float]] = [
    (QSGD(4), None, 0.02),
    (QSGD(8), Half("bfloat16", error_feedback=False), 0.02),
    (Sign(), QSGD(8, rounding="nearest", error_feedback=False), 0.15),
    (TopK(0.1), None, 0.4),
]


def run_lossy() -> list[float]:
    losses = []
    for gradients, weights, _ in LOSSY:
        _, loss, sent, formula = run_sharded(gradients, weights)
        assert sent == formula
        losses.append(loss)
    return losses


def test_lossy_learns_as_well_in_the_bytes_of_the_formula() -> None:
    before = train(make_model(), range(1), rank=None)
    _, expected = alone()
    assert expected < 0.1 * before
    by_rank = run(WORLD, run_lossy)
    for k, (gradients, _, tolerance) in enumerate(LOSSY):
        loss = sum(losses[k] for losses in by_rank) / WORLD
        assert loss == pytest.approx(expected, rel=tolerance), gradients


def run_twice() -> bool:
    """Train half the steps, save, and train the rest: with the same model, and with another that resumes."""
    settings = Threshold(share=0.05)
    model = sharded_model()
    sharded = compress_sharded(model, gradients=settings)
    train(model, range(5), rank=dist.get_rank())
    saved, state = sharded.state_dict(), {name: p.detach().clone() for name, p in model.state_dict().items()}
    train(model, range(5, 10), rank=dist.get_rank())
    other = sharded_model()
    other.load_state_dict(state)
    resumed = compress_sharded(other, gradients=settings)
    resumed.load_state_dict(saved)
    train(other, range(5, 10), rank=dist.get_rank())
    ours, theirs = weights_of(model), weights_of(other)
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_resume_equals_no_interruption() -> None:
    assert run(WORLD, run_twice) == [True, True]


class Branches(nn.Module):
    """Which of the two is used, the step decides."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.turn = 0

    def forward(self, x: Tensor) -> Tensor:
        self.turn += 1
        result: Tensor = (self.left if self.turn % 2 else self.right)(x)
        return result


def run_unused() -> float:
    model = Branches()
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    compress_sharded(model, gradients=Half(error_feedback=False))
    for _ in range(4):
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
    grad: Any = model.right.weight.grad
    return float(grad.full_tensor().sum())


def test_parameters_without_a_gradient_do_no_harm() -> None:
    assert run(WORLD, run_unused) == [32.0, 32.0]


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(MethodError, match="fully_shard"):
        compress_sharded(make_model(), gradients=Sign())
    assert run(1, refusals) == [4]


def refusals() -> int:
    model = make_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    settings: list[dict[str, Any]] = [
        {"gradients": PowerSGD(2)},
        {"weights": TopK(0.1, error_feedback=False)},
        {"weights": Half()},
        {"weights": PowerSGD(2)},
    ]
    count = 0
    for each in settings:
        with pytest.raises(MethodError):
            compress_sharded(model, **each)
        count += 1
    assert isinstance(compress_sharded(model, gradients=Sign()), Sharded)
    return count
