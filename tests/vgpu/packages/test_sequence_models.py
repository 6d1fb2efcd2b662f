"""causal_conv1d and mamba_ssm: convolutions and scans, of the installed packages or of what stands in for them."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import on_gpu, rehearse


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    return torch.empty(shape, device="cuda", dtype=dtype, requires_grad=True)


def _convolve() -> None:
    from causal_conv1d import causal_conv1d_fn

    x, weight, bias = _tensor(2, 256, 1000), _tensor(256, 4), _tensor(256)
    causal_conv1d_fn(x, weight, bias, activation="silu").sum().backward()
    assert [t.grad.shape for t in (x, weight, bias)] == [t.shape for t in (x, weight, bias)]


def _kernels(function: Any, package: str) -> list[Any]:
    return [op.signature for op in rehearse(function).trace.rank(0).operators() if op.signature.op.startswith(package)]


def test_a_convolution_is_one_kernel_each_way():
    forward, backward = _kernels(_convolve, "causal_conv1d::")
    assert forward.op == "causal_conv1d::causal_conv1d_fwd"
    assert [spec.shape for spec in forward.outputs] == [(2, 256, 1000)]
    assert [spec.shape for spec in backward.outputs][:3] == [(2, 256, 1000), (256, 4), (256,)]


def _scan() -> None:
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    u, delta, z = (_tensor(2, 256, 3000) for _ in range(3))
    a, d, bias = (_tensor(*shape, dtype=torch.float32) for shape in ((256, 16), (256,), (256,)))
    b, c = (_tensor(2, 1, 16, 3000) for _ in range(2))
    selective_scan_fn(u, delta, a, b, c, d, z, bias, True).sum().backward()
    assert [t.grad.shape for t in (u, a, b, z)] == [t.shape for t in (u, a, b, z)]


def test_a_scan_keeps_the_state_of_every_2048_positions():
    forward, backward = _kernels(_scan, "mamba_ssm::selective_scan")
    assert [spec.shape for spec in forward.outputs] == [(2, 256, 3000), (2, 256, 2, 32), (2, 256, 3000)]
    assert forward.work.flops == 2 * 256 * 3000 * 16 * 14
    assert backward.work.flops == 2 * forward.work.flops


@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 5), (2, 3, 4, 5)], ids=["constant", "per batch", "in groups"])
def test_a_scan_step_by_step_is_the_recurrence(shape: tuple[int, ...]):
    from sandtable.vgpu.packages.mamba_ssm.scan import selective_scan_ref

    torch.manual_seed(0)
    u, delta, z = (torch.randn(2, 6, 5, dtype=torch.float32) for _ in range(3))
    a, d, bias, b, c = (torch.randn(s) for s in ((6, 4), (6,), (6,), shape, shape))
    out, last = selective_scan_ref(u, delta, a, b, c, d, z, bias, True, True)

    def at(y: torch.Tensor, batch: int, channel: int, step: int) -> torch.Tensor:
        by_rank = {2: lambda: y[channel], 3: lambda: y[batch, :, step], 4: lambda: y[batch, channel // 2, :, step]}
        return by_rank[y.dim()]()

    for batch, channel in ((0, 0), (1, 5)):
        state = torch.zeros(4)
        for step in range(5):
            dt = torch.nn.functional.softplus(delta[batch, channel, step] + bias[channel])
            x = u[batch, channel, step]
            state = torch.exp(dt * a[channel]) * state + dt * at(b, batch, channel, step) * x
            y = (state @ at(c, batch, channel, step) + d[channel] * x) * torch.nn.functional.silu(
                z[batch, channel, step]
            )
            torch.testing.assert_close(out[batch, channel, step], y)
        torch.testing.assert_close(last[batch, channel], state)


def _blocked_scan() -> None:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined

    x, dt, a = _tensor(2, 1024, 8, 64), _tensor(2, 1024, 8), _tensor(8, dtype=torch.float32)
    b, c = (_tensor(2, 1024, 1, 128) for _ in range(2))
    mamba_chunk_scan_combined(x, dt, a, b, c, 256, D=_tensor(8)).sum().backward()
    assert [t.grad.shape for t in (x, dt, a, b, c)] == [t.shape for t in (x, dt, a, b, c)]
    packed = _tensor(2, 1024, 2 * 512 + 2 * 128 + 8)
    out = mamba_split_conv1d_scan_combined(
        packed, _tensor(512 + 256, 4), _tensor(768), _tensor(8), a, _tensor(8), 256,
        rmsnorm_weight=_tensor(512), outproj_weight=_tensor(256, 512), headdim=64,
    )  # fmt: skip
    out.sum().backward()
    assert (out.shape, packed.grad.shape) == ((2, 1024, 256), packed.shape)


@pytest.mark.skipif(find_spec("mamba_ssm") is not None, reason="the installed package's kernels are Triton's")
def test_the_blocked_scan_is_products_within_chunks():
    signatures = _kernels(_blocked_scan, "mamba_ssm::")
    by_name = {signature.op.removeprefix("mamba_ssm::"): signature for signature in signatures}
    num_chunks = 2 * 4
    assert by_name["bmm_chunk"].work.products == ((num_chunks, 256, 256, 128),)
    assert by_name["chunk_state"].work.products == ((num_chunks * 8, 64, 128, 256),)
    assert by_name["chunk_scan"].work.products == ((num_chunks * 8, 256, 64, 256), (num_chunks * 8, 256, 64, 128))
    assert {"chunk_state_bwd_db", "bmm_chunk_bwd", "layer_norm_gated"} <= set(by_name)


@pytest.mark.skipif(find_spec("mamba_ssm") is not None, reason="the installed package has a block of its own")
@on_gpu()
def test_a_whole_block_of_mamba_1():
    from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn

    xz, weights = _tensor(2, 512, 1000), _tensor(48, 256)
    a, d = _tensor(256, 16, dtype=torch.float32), _tensor(256, dtype=torch.float32)
    projections = weights, _tensor(256, 16), _tensor(128, 256)
    out = mamba_inner_fn(xz, _tensor(256, 1, 4), None, *projections, None, a, D=d, delta_bias=_tensor(256))
    out.sum().backward()
    assert (out.shape, weights.grad.shape) == ((2, 1000, 128), weights.shape)
