"""Smooth problems in float64 for tests of L-BFGS: a function of one vector, giving loss and gradient, and a start."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Function = Callable[[Tensor], tuple[float, Tensor]]


def logistic_regression() -> tuple[Function, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 15, generator=generator, dtype=torch.float64)
    noise = torch.randn(200, generator=generator, dtype=torch.float64)
    targets = (inputs @ torch.randn(15, generator=generator, dtype=torch.float64) + noise / 2 > 0).double()

    def loss(weights: Tensor) -> Tensor:
        fit = nn.functional.binary_cross_entropy_with_logits(inputs @ weights, targets)
        return fit + 1e-3 * weights.square().sum()

    return _with_gradient(loss), torch.zeros(15, dtype=torch.float64)


def small_network(*, scale: float = 1.0) -> tuple[Function, Tensor]:
    """Make a network that learns another's answers. A small scale makes a first step of one unit far too long."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(100, 6, generator=generator, dtype=torch.float64)
    targets = torch.tanh(inputs @ torch.randn(6, 3, generator=generator, dtype=torch.float64))
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    start = parameters_to_vector(model.parameters()).detach().clone()

    def function(weights: Tensor) -> tuple[float, Tensor]:
        vector_to_parameters(weights.clone(), model.parameters())
        model.zero_grad()
        loss = scale * nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss.item(), parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None])

    return function, start


def rosenbrock() -> tuple[Function, Tensor]:
    """Make a bent valley: searches need several evaluations."""

    def loss(x: Tensor) -> Tensor:
        return (100 * (x[1:] - x[:-1].square()).square() + (1 - x[:-1]).square()).sum()

    return _with_gradient(loss), torch.tensor([-1.2, 1.0, -0.5, 2.0, 1.5, -1.0], dtype=torch.float64)


def waves() -> tuple[Function, Tensor]:
    """Make a function of many minima: steps overshoot, and slopes turn between trials."""

    def loss(x: Tensor) -> Tensor:
        return (x.square() / 20 + torch.cos(3 * x) + torch.sin(x[0] * x)).sum()

    return _with_gradient(loss), torch.linspace(-3, 4, 8, dtype=torch.float64)


def quartic() -> tuple[Function, Tensor]:
    """Make a function that is very flat at the bottom and very steep far out."""

    def loss(x: Tensor) -> Tensor:
        return (torch.arange(1, 6, dtype=x.dtype) * x.square().square()).sum() + (x.sum() - 1).square()

    return _with_gradient(loss), torch.full((5,), 30.0, dtype=torch.float64)


def _with_gradient(loss: Callable[[Tensor], Tensor]) -> Function:
    def function(weights: Tensor) -> tuple[float, Tensor]:
        leaf = weights.clone().requires_grad_()
        value = loss(leaf)
        value.backward()
        assert leaf.grad is not None
        return value.item(), leaf.grad

    return function
