"""grouped_gemm: products of groups and permutations, of the installed package or of what stands in for it."""

from typing import Any

import torch
from tests.vgpu.virtual import rehearse


def _multiply() -> None:
    from grouped_gemm import ops

    a: Any = torch.empty(300, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    b: Any = torch.empty(3, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ops.gmm(a, b, torch.tensor([100, 0, 200])).sum().backward()
    assert (a.grad.shape, b.grad.shape) == (a.shape, b.shape)
    indices = torch.zeros(300, 2, device="cuda", dtype=torch.int32)
    rows, places = ops.permute(a, indices)
    assert rows.shape == (600, 64)
    probabilities: Any = torch.ones(300, 2, device="cuda", requires_grad=True)
    ops.unpermute(rows, places, probabilities).sum().backward()
    assert probabilities.grad.shape == (300, 2)


def test_groups_are_the_products_of_one_kernel():
    operators: list[Any] = [
        op.signature for op in rehearse(_multiply).trace.rank(0).operators() if "grouped_gemm" in op.signature.op
    ]
    forward, inputs, weights, *moves = operators
    assert forward.work.products == ((1, 100, 32, 64), (1, 200, 32, 64))
    assert inputs.work.products == ((1, 100, 64, 32), (1, 200, 64, 32))
    assert weights.work.products == ((1, 64, 32, 100), (1, 64, 32, 200))
    names = [signature.op.removeprefix("grouped_gemm::") for signature in moves]
    assert names == ["sort", "permute", "unpermute", "unpermute_bwd", "unpermute"]
