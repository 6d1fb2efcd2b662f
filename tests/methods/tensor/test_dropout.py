"""Dropout masks differ between ranks where work is split, and are equal where it is not."""

from typing import Any

import pytest
import torch
from tests.methods.processes import run
from tests.methods.tensor.models import GPT, GPT_PLAN, tokens_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sandtable.methods.tensor import TensorParallel, TensorPlan


class _Layer(nn.Module):
    """Dropout before, between and after the pair of linears; it records the masks."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self._drop(x)
        x = self.down(self._drop(self.up(x)))
        return self._drop(x)

    def _drop(self, x: Tensor) -> Tensor:
        self.masks.append(self.drop(torch.ones(8, 4)))
        return x * self.masks[-1].mean()


def _masks(seed_by_rank: bool) -> list[Tensor]:
    torch.manual_seed(torch.distributed.get_rank() if seed_by_rank else 0)
    layers = nn.Sequential(_Layer(), _Layer())
    TensorParallel(layers, plan={"up": "column", "down": "row"})
    layers(torch.ones(2, 8))
    return [mask for layer in layers for mask in layer.masks]  # type: ignore[union-attr]


@pytest.mark.parametrize("seed_by_rank", [False, True])
def test_masks_differ_inside_and_agree_outside(seed_by_rank):
    first, second = run(2, _masks, seed_by_rank)
    is_equal = [torch.equal(mine, theirs) for mine, theirs in zip(first, second, strict=True)]
    assert is_equal == [True, False, True] * 2
    # And no two masks of a rank are the same.
    assert len({tuple(mask.flatten().tolist()) for mask in first}) == len(first)


def _recompute(sequence_parallel: bool) -> dict[Any, Any]:
    """Return the gradients of two equal models, one of which recomputes its blocks in backward."""
    found: dict[Any, Any] = {}
    for is_recomputed in (False, True):
        torch.manual_seed(11)
        model = GPT(dropout=0.3)
        TensorParallel(model, plan=GPT_PLAN, sequence_parallel=sequence_parallel)
        if is_recomputed:
            for block in model.blocks:
                _recompute_block(block)
        model(tokens_of(0)[0]).square().sum().backward()
        found[is_recomputed] = {name: each.grad for name, each in model.named_parameters()}
    found["state"] = torch.get_rng_state()
    return found


def _recompute_block(block: nn.Module) -> None:
    forward = block.forward
    block.forward = lambda x: checkpoint(forward, x, use_reentrant=False)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_recomputation_draws_the_same_masks(sequence_parallel):
    results = run(2, _recompute, sequence_parallel)
    for found in results:
        for name, gradient in found[False].items():
            torch.testing.assert_close(found[True][name], gradient, msg=f"{name} differs")
    assert torch.equal(results[0]["state"], results[1]["state"])


def _share_of_tokens() -> list[Tensor]:
    """Return the dropout masks between two split layers, where each rank has different tokens."""
    torch.manual_seed(0)
    layers = nn.Sequential(_Layer(), _Layer())
    plan = TensorPlan({"up": "column", "down": "row"}, sequence=("0", "1"))
    TensorParallel(layers, plan=plan, sequence_parallel=True)
    layers(torch.ones(2, 4, 8))
    return [mask for layer in layers for mask in layer.masks]  # type: ignore[union-attr]


def test_masks_differ_everywhere_where_tokens_are_shared_out():
    first, second = run(2, _share_of_tokens)
    assert not any(torch.equal(mine, theirs) for mine, theirs in zip(first, second, strict=True))
