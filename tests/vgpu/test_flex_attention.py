"""Compiled flex attention is one kernel each way, with the arithmetic that its mask leaves."""

from __future__ import annotations

import pytest
import torch
from tests.vgpu.virtual import rehearse

from sandtable.vgpu.compile.attention_mask import mask_density


@pytest.mark.parametrize(
    ("mask", "density"),
    [
        (lambda b, h, q, k: q >= k, 0.5),
        (lambda b, h, q, k: (q >= k) & (q - k < 1024), 252 / 1024),
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
    square = 2 * 4 * 2048 * 2048 * 64 * 17 / 16  # 16 blocks a side: those on the diagonal are computed whole
    forward, backward = works["flex_attention::forward"], works["flex_attention::backward"]
    assert forward is not None
    assert backward is not None
    assert forward.flops == pytest.approx(2 * 2 * square / 2, rel=0.05)
    assert backward.flops == pytest.approx(2 * 5 * square / 2, rel=0.05)
    assert not any(signature.op == "aten::bmm" for signature in signatures)


def _attend_in_documents(length: int, *, known: bool) -> None:
    from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention

    positions = torch.arange(32768) % length
    documents = (positions == 0).cumsum(0).to("cuda")
    if not known:
        documents = (documents + torch.zeros(32768, device="cuda")).long()

    def is_causal(b, h, q, k):
        return q >= k

    def is_one_document(b, h, q, k):
        return documents[q] == documents[k]

    mask = and_masks(is_causal, is_one_document)
    blocks = torch.compile(create_block_mask)(mask, None, None, 32768, 32768, device="cuda")
    query, key, value = (
        torch.zeros(1, 4, 32768, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    torch.compile(flex_attention)(query, key, value, block_mask=blocks).sum().backward()


def _flops_in_documents(length: int, *, known: bool = True) -> list[int]:
    trace = rehearse(_attend_in_documents, arguments={"length": length, "known": known}).trace
    works = [op.signature.work for op in trace.rank(0).operators() if op.signature.op.startswith("flex_attention::")]
    return [work.flops for work in works if work is not None]


def test_a_mask_that_reads_known_documents_leaves_the_blocks_within_them():
    forward, backward = _flops_in_documents(4096)
    blocks = 8 * (32 * 33 // 2)  # eight documents of 32 blocks each, causal
    assert forward == pytest.approx(2 * 2 * 4 * 64 * blocks * 128**2, rel=0.02)
    assert backward == pytest.approx(2.5 * forward, rel=0.02)


def test_a_mask_that_reads_unknown_documents_counts_as_causal():
    forward, _ = _flops_in_documents(4096, known=False)
    assert forward == pytest.approx(2 * 2 * 4 * 64 * 32768**2 / 2, rel=0.01)
