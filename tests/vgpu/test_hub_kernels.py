"""Kernels of Hugging Face's hub: the replacement of the package that a repository is built from."""

import pytest
import torch
from tests.vgpu.virtual import on_gpu


@on_gpu(cluster="dgx-h100")
def test_flash_attention_comes_without_a_network_and_compiles_into_a_graph():
    from kernels import get_kernel

    attend = get_kernel("kernels-community/flash-attn3", version=1).flash_attn_interface.flash_attn_varlen_func
    query, key, value = (
        torch.zeros(64, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    starts = torch.tensor([0, 32, 64], dtype=torch.int32, device="cuda")

    @torch.compile(fullgraph=True)
    def layer(query, key, value):
        return attend(
            query, key, value, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=32, max_seqlen_k=32, causal=True
        )

    layer(query, key, value).sum().backward()
    assert query.grad is not None


@on_gpu()
def test_a_repository_without_a_replacement_is_named():
    from kernels import get_kernel

    with pytest.raises(RuntimeError, match="somebody/activation must have a replacement"):
        get_kernel("somebody/activation")
