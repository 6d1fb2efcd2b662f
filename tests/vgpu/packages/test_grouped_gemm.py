"""grouped_gemm: products of groups and permutations, of the installed package or of what stands in for it."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import rehearse


def _multiply() -> None:
    from grouped_gemm import ops

    a: Any = torch.empty(300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    b: Any = torch.empty(3, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ops.gmm(a, b, torch.tensor([100, 0, 200])).sum().backward()
    assert (a.grad.shape, b.grad.shape) == (a.shape, b.shape)


def _permute() -> None:
    from grouped_gemm import ops

    a: Any = torch.empty(300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    indices = torch.zeros(300, 2, device="cuda", dtype=torch.int32)
    rows, places = ops.permute(a, indices)
    assert rows.shape == (600, 64)
    probabilities: Any = torch.ones(300, 2, device="cuda", requires_grad=True)
    ops.unpermute(rows, places, probabilities).sum().backward()
    assert probabilities.grad.shape == (300, 2)


def _only_multiplies() -> bool:
    """Return whether the installed package is the first of its name, which has no permutations."""
    spec = find_spec("grouped_gemm")
    source = Path(spec.origin if spec and spec.origin else "nowhere").with_name("ops.py")
    return source.is_file() and "permute" not in source.read_text()


def _signatures(function: Callable[[], None]) -> list[Any]:
    operators = rehearse(function).trace.rank(0).operators()
    return [op.signature for op in operators if "grouped_gemm" in op.signature.op]


def test_groups_are_the_products_of_one_kernel():
    forward, inputs, weights = _signatures(_multiply)
    assert forward.work.products == ((1, 100, 32, 64), (1, 200, 32, 64))
    assert inputs.work.products == ((1, 100, 64, 32), (1, 200, 64, 32))
    assert weights.work.products == ((1, 64, 32, 100), (1, 64, 32, 200))


@pytest.mark.skipif(_only_multiplies(), reason="the installed package has no permutations")
def test_rows_move_to_their_groups_and_back():
    names = [signature.op.removeprefix("grouped_gemm::") for signature in _signatures(_permute)]
    assert names == ["sort", "permute", "unpermute", "unpermute_bwd", "unpermute"]
