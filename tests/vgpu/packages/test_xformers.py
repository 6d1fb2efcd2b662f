"""xformers: attention with masks as objects, of the installed package or of what stands in for it."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.trace import Phase

IS_INSTALLED = find_spec("xformers") is not None


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    return torch.empty(shape, device="cuda", dtype=dtype, requires_grad=True)


def _attend() -> None:
    import xformers.ops as xops
    from xformers.ops import fmha

    q, k, v = (_tensor(2, 1024, 8, 64) for _ in range(3))
    xops.memory_efficient_attention(q, k, v, attn_bias=fmha.attn_bias.LowerTriangularMask()).sum().backward()
    assert q.grad.shape == q.shape
    mask = fmha.attn_bias.BlockDiagonalMask.from_seqlens([1024, 512, 512]).make_causal()
    q, k, v = (_tensor(1, 2048, 8, 64) for _ in range(3))
    fmha.memory_efficient_attention(q, k, v, attn_bias=mask).sum().backward()
    assert v.grad.shape == v.shape


def _signatures(cluster: str = "dgx-a100") -> list[Any]:
    operators = list(rehearse(_attend, cluster=cluster).trace.rank(0).operators())
    return [op for op in operators if op.signature.op.startswith("xformers")]


def test_attention_is_flash_attention_for_one_sequence_and_for_many():
    fixed, fixed_backward, varlen, varlen_backward = _signatures()
    assert (fixed.signature.op, varlen.signature.op) == ("xformers_flash::flash_fwd",) * 2
    assert (fixed_backward.signature.op, fixed_backward.phase) == ("xformers_flash::flash_bwd", Phase.BACKWARD)
    assert [spec.shape for spec in fixed.signature.inputs] == [(2, 1024, 8, 64)] * 3
    assert [spec.shape for spec in varlen.signature.inputs] == [(2048, 8, 64)] * 3 + [(4,)] * 2
    assert [spec.shape for spec in fixed.signature.outputs][:2] == [(2, 1024, 8, 64), (2, 8, 1024)]
    assert [spec.shape for spec in varlen.signature.outputs][:2] == [(2048, 8, 64), (8, 2048)]
    assert [spec.shape for spec in varlen_backward.signature.outputs] == [(2048, 8, 64)] * 3


@pytest.mark.skipif(IS_INSTALLED, reason="the installed package may have no FlashAttention 3")
def test_attention_on_hopper_is_flash_attention_3():
    assert {op.signature.op for op in _signatures("dgx-h100")} == {
        "xformers_flash3::flash_fwd",
        "xformers_flash3::flash_bwd",
    }


@pytest.mark.skipif(IS_INSTALLED, reason="the installed package has its own rules")
@on_gpu()
def test_groups_of_heads_share_keys():
    import xformers.ops as xops

    q, k = _tensor(2, 1024, 2, 4, 64), _tensor(2, 1024, 2, 1, 64)
    shared = k.expand(2, 1024, 2, 4, 64)
    assert xops.memory_efficient_attention(q, shared, shared).shape == q.shape
    xops.memory_efficient_attention(q, shared, shared).sum().backward()
    assert k.grad.shape == k.shape


@pytest.mark.skipif(IS_INSTALLED, reason="the installed package needs Triton for these")
@on_gpu()
def test_layers():
    import xformers.ops as xops
    import xformers.profiler

    x = _tensor(4, 512, dtype=torch.float32)
    xops.SwiGLU(512, 1024).cuda()(x).sum().backward()
    xops.RMSNorm(512).cuda()(x).sum().backward()
    assert x.grad.shape == x.shape
    q = _tensor(2, 64, 4, 64, dtype=torch.float32)
    bias = xops.fmha.attn_bias.LowerTriangularMask()
    xops.memory_efficient_attention(q, q, q, attn_bias=bias).sum().backward()
    with xformers.profiler.profile("out"):
        xformers.profiler.step()
