"""Compiled flex attention is one kernel each way, with the arithmetic that its mask leaves."""

from __future__ import annotations

import pytest
import torch
from tests.vgpu.virtual import rehearse

from sandtable.vgpu.compile.flex_attention import mask_density


@pytest.mark.parametrize(
    ("mask", "density"),
    [
        (lambda b, h, q, k: q >= k, 0.5),
        (lambda b, h, q, k: (q >= k) & (q - k < 1024), 0.22),
        (lambda b, h, q, k: q >= 0, 1.0),
    ],
)
def test_the_density_of_a_mask(mask, density):
    assert mask_density(mask, 4096, 4096) == pytest.approx(density, abs=0.02)


def _attend(*, mode: str | None) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, mode=mode)
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 2048, 2048, device="cuda")
    query, key, value = (
        torch.zeros(2, 2048, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    out = compiled(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), block_mask=mask)
    assert out.shape == (2, 4, 2048, 64)
    out.sum().backward()
    assert query.grad is not None


@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_compiled_flex_attention_is_one_kernel_forward_and_one_backward(mode):
    signatures = [op.signature for op in rehearse(_attend, arguments={"mode": mode}).trace.rank(0).operators()]
    works = {signature.op: signature.work for signature in signatures if signature.op.startswith("flex_attention::")}
    square = 2 * 4 * 2048 * 2048 * 64
    forward, backward = works["flex_attention::forward"], works["flex_attention::backward"]
    assert forward is not None
    assert backward is not None
    assert forward.flops == pytest.approx(2 * 2 * square / 2, rel=0.05)
    assert backward.flops == pytest.approx(2 * 5 * square / 2, rel=0.05)
    assert not any(signature.op == "aten::bmm" for signature in signatures)
