"""The loss of split logits equals torch's for every setting, and costs the same for any vocabulary."""

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.methods.processes import run
from torch import Tensor
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.tensor import TensorGroup, cross_entropy

_TOKENS = (3, 5)
_SETTINGS: list[dict[str, Any]] = [
    {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
    for reduction, smoothing, ignored in itertools.product(("mean", "sum", "none"), (0.0, 0.1), (-100, 7))
]


def _problem(vocabulary: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    # Large, so that exponentials overflow unless the maximum over all ranks is taken off.
    logits = 400 * torch.randn(*_TOKENS, vocabulary, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, _TOKENS, generator=generator)
    targets[0, :2] = 7
    targets[1, 1] = -100
    return logits.to(dtype), targets


def _loss_and_gradient(settings: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    logits, targets = _problem(16, dtype)
    if settings["ignore_index"] != -100:
        targets[1, 1] = 3
    share = logits.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].clone().requires_grad_()
    loss = cross_entropy(share, targets, TensorGroup(), **settings)
    (loss * torch.arange(1, loss.numel() + 1).view(loss.shape)).sum().backward()
    assert share.grad is not None
    return loss.detach(), share.grad


def _all_settings(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    return [_loss_and_gradient(settings, dtype) for settings in _SETTINGS]


def _alone(settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    logits, targets = _problem(16)
    if settings["ignore_index"] != -100:
        targets[1, 1] = 3
    logits.requires_grad_()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), **settings)
    (loss * torch.arange(1, loss.numel() + 1)).sum().backward()
    assert logits.grad is not None
    return loss.detach().view(_TOKENS if loss.dim() else ()), logits.grad


def _with_words_ruled_out() -> tuple[Tensor, Tensor]:
    """Exclude the first words of each rank: their logits are -inf."""
    logits, targets = _problem(16)
    logits.view(*_TOKENS, 2, 8)[..., :3] = -torch.inf
    return logits, (targets % 5 + 3).masked_fill(targets == -100, -100)


def _loss_with_words_ruled_out() -> tuple[Tensor, Tensor]:
    logits, targets = _with_words_ruled_out()
    share = logits.chunk(2, dim=-1)[dist.get_rank()].clone().requires_grad_()
    loss = cross_entropy(share, targets, TensorGroup())
    loss.backward()
    assert share.grad is not None
    return loss.detach(), share.grad


def _bytes_of(vocabulary: int) -> tuple[dict[str, int], dict[str, int]]:
    logits, targets = _problem(vocabulary, torch.float32)
    group = TensorGroup()
    share = logits.chunk(group.size, dim=-1)[group.rank].clone().requires_grad_()
    cross_entropy(share, targets, group).backward()
    return dict(group.traffic.calls), dict(group.traffic.sent_bytes)


def _bytes_of_both() -> tuple[Any, Any]:
    return _bytes_of(128), _bytes_of(4096)


def _refusals() -> list[str]:
    logits, targets = _problem(16)
    share, group = logits[..., :8], TensorGroup()
    told = []
    changes: tuple[dict[str, Any], ...] = (
        {"targets": targets.clamp(min=0) + 16},
        {"targets": targets.clamp(min=0) - 16},
        {"targets": targets[:2]},
        {"reduction": "average"},
        {"label_smoothing": 1.5},
    )
    for change in changes:
        with pytest.raises(MethodError) as error:
            cross_entropy(share, **{"targets": targets, "group": group, **change})
        told.append(str(error.value))
    return told


@pytest.mark.parametrize("world", [2, 4])
def test_loss_and_gradient_are_those_of_whole_logits(world):
    results = run(world, _all_settings, torch.float64)
    for number, settings in enumerate(_SETTINGS):
        loss, gradient = _alone(settings)
        for rank, each in enumerate(results):
            torch.testing.assert_close(each[number][0], loss, rtol=1e-12, atol=1e-9, msg=f"loss of {settings}")
            share = gradient.chunk(world, dim=-1)[rank]
            torch.testing.assert_close(each[number][1], share, rtol=1e-12, atol=1e-12, msg=f"gradient of {settings}")


def test_words_that_are_ruled_out_do_not_count():
    logits, targets = _with_words_ruled_out()
    loss = F.cross_entropy(logits.requires_grad_().flatten(0, 1), targets.flatten())
    loss.backward()
    assert logits.grad is not None
    for rank, (own, gradient) in enumerate(run(2, _loss_with_words_ruled_out)):
        torch.testing.assert_close(own, loss.detach())
        torch.testing.assert_close(gradient, logits.grad.chunk(2, dim=-1)[rank])


def test_half_precision_logits_give_a_loss_in_single_precision():
    (loss, gradient), *_ = run(2, _all_settings, torch.bfloat16)[0]
    assert loss.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16


def test_bytes_do_not_depend_on_the_vocabulary():
    ((small, large), _) = run(2, _bytes_of_both)
    assert small == large
    tokens = _TOKENS[0] * _TOKENS[1]
    assert small == ({"all-reduce": 2}, {"all-reduce": 3 * tokens * 4})  # the largest; then a sum and a target


def test_what_cannot_be_a_target_is_refused():
    above, below, shape, reduction, smoothing = run(2, _refusals)[0]
    assert above.startswith("indices must be from 0 to 15, but got ")
    assert below.startswith("indices must be from 0 to 15, but got -")
    assert "targets must have the shape of the logits without the vocabulary, [3, 5], but got [2, 5]" in shape
    assert "reduction must be" in reduction
    assert "label_smoothing must be from 0 to 1, but got 1.5" in smoothing
