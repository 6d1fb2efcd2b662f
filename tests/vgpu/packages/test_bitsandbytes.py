"""bitsandbytes: its own Python on kernels of ours."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import rehearse

pytestmark = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


def _kernels(function: Any) -> list[Any]:
    operators = rehearse(function).trace.rank(0).operators()
    return [op.signature for op in operators if op.signature.op.startswith("bitsandbytes::")]


def _four_bits() -> None:
    import bitsandbytes as bnb

    x: Any = torch.empty(64, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer = bnb.nn.Linear4bit(1024, 512, bias=False, quant_type="nf4", compute_dtype=torch.bfloat16).cuda()
    assert layer.weight.dtype == torch.uint8
    assert layer.weight.numel() == 1024 * 512 // 2
    layer(x).sum().backward()
    assert x.grad.shape == x.shape


def test_weights_of_four_bits_are_dequantized_for_the_products():
    quantize, *rest = _kernels(_four_bits)
    assert quantize.op == "bitsandbytes::quantize_4bit"
    assert [spec.shape for spec in quantize.outputs] == [(262144, 1), (8192,)]  # a float32 for 64 weights
    assert rest[-1].op == "bitsandbytes::dequantize_4bit"  # in the backward pass


def _eight_bits() -> None:
    import bitsandbytes as bnb

    x: Any = torch.empty(64, 1024, device="cuda", dtype=torch.float16, requires_grad=True)
    bnb.nn.Linear8bitLt(1024, 512, bias=False, has_fp16_weights=False).cuda()(x).sum().backward()
    assert x.grad.shape == x.shape


def test_products_of_integers_are_timed_as_such():
    products = [signature for signature in _kernels(_eight_bits) if signature.work.products]
    assert products[0].work.products == ((1, 64, 512, 1024),)
    assert products[0].work.dtype == "int8"


def _optimize() -> None:
    import bitsandbytes as bnb

    layer = torch.nn.Linear(1024, 1024, bias=False).cuda()
    optimizer = bnb.optim.AdamW8bit(layer.parameters())
    layer(torch.empty(4, 1024, device="cuda")).sum().backward()
    optimizer.step()
    states = optimizer.state[layer.weight]
    assert (states["state1"].dtype, states["state1"].shape) == (torch.uint8, layer.weight.shape)


def test_an_optimizer_with_states_of_eight_bits_is_one_kernel_per_tensor():
    (update,) = _kernels(_optimize)
    assert update.op == "bitsandbytes::optimizer_update_8bit_blockwise"
    assert [spec.dtype for spec in update.outputs][:4] == ["float32", "float32", "uint8", "uint8"]
