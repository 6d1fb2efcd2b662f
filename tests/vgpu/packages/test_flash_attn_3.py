"""FlashAttention 3: the operators of Hopper, of the installed package or of what stands in for it."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.trace import Phase

IS_INSTALLED = find_spec("flash_attn_interface") is not None


def _attend(is_ours: bool) -> None:
    import flash_attn_interface

    from sandtable.vgpu.packages.flash_attn_3 import functions

    module: Any = functions if is_ours else flash_attn_interface
    q, k, v = (
        torch.empty(2, 1024, heads, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in (8, 2, 2)
    )
    module.flash_attn_func(q, k, v, causal=True).sum().backward()
    assert k.grad is not None
    assert k.grad.shape == k.shape
    bounds = torch.tensor([0, 48, 2048], device="cuda", dtype=torch.int32)
    q, k, v = (x.detach().flatten(0, 1).requires_grad_() for x in (q, k, v))
    module.flash_attn_varlen_func(q, k, v, bounds, bounds, 2000, 2000, window_size=(256, 0)).sum().backward()


def _operators(*, is_ours: bool) -> list[Any]:
    trace = rehearse(_attend, cluster="dgx-h100", arguments={"is_ours": is_ours}).trace
    return [op for op in trace.rank(0).operators() if op.signature.op.startswith("flash_attn_3::")]


def test_attention_is_the_operators_of_flash_attention_3():
    forward, backward, varlen, varlen_backward = _operators(is_ours=False)
    assert [op.signature.op for op in (forward, backward)] == ["flash_attn_3::fwd", "flash_attn_3::bwd"]
    assert [op.signature.op for op in (varlen, varlen_backward)] == ["flash_attn_3::fwd", "flash_attn_3::bwd"]
    assert backward.phase == Phase.BACKWARD
    assert [spec.shape for spec in forward.signature.outputs][:2] == [(2, 1024, 8, 128), (2, 8, 1024)]
    assert [spec.shape for spec in varlen.signature.outputs][:2] == [(2048, 8, 128), (8, 2048)]


@pytest.mark.skipif(not IS_INSTALLED, reason="compares with the installed package")
def test_the_installed_package_leaves_the_same_records():
    installed, ours = ([op.signature for op in _operators(is_ours=is_ours)] for is_ours in (False, True))
    assert installed == ours


@pytest.mark.skipif(IS_INSTALLED, reason="flash_attn_interface is installed here")
@on_gpu(cluster="dgx-h100")
def test_fp8_gives_bfloat16():
    from flash_attn_interface import flash_attn_func

    q = torch.empty(2, 64, 8, 128, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)
    scale = torch.ones(2, 8, device="cuda")
    assert flash_attn_func(q, q, q, q_descale=scale, k_descale=scale, v_descale=scale).dtype == torch.bfloat16


def _attend_on_blackwell() -> None:
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

    q, k, v = (torch.empty(2, 1024, 8, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out, lse = flash_attn_func(q, k, v, causal=True, window_size=(128, None))
    assert lse is None
    out.sum().backward()
    bounds = torch.tensor([0, 1024, 2048], device="cuda", dtype=torch.int32)
    flat = [x.detach().flatten(0, 1) for x in (q, k, v)]
    assert flash_attn_varlen_func(*flat, bounds, bounds, causal=True)[0].shape == (2048, 8, 128)


def test_flash_attention_4_is_recorded_as_3():
    trace = rehearse(_attend_on_blackwell, cluster="dgx-b200").trace
    names = [op.signature.op for op in trace.rank(0).operators() if op.signature.op.startswith("flash_attn_3::")]
    assert names == ["flash_attn_3::fwd", "flash_attn_3::bwd", "flash_attn_3::fwd"]
