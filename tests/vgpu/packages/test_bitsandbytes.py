"""bitsandbytes: its own Python on kernels of ours, or layers and optimizers of ours."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import on_gpu, rehearse


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
    assert [spec.shape for spec in update.outputs if spec.dtype == "uint8"] == [(1024, 1024)] * 2
    assert (4096,) in [spec.shape for spec in update.outputs]  # the largest of each 256


def _train_adapter() -> None:
    """Fine-tune as QLoRA does: a frozen weight of 4 bits, and two small ones beside it."""
    import bitsandbytes as bnb

    frozen = bnb.nn.Linear4bit(1024, 1024, compute_dtype=torch.bfloat16, quant_type="nf4")
    frozen = torch.nn.Sequential(frozen).cuda()
    down, up = (torch.nn.Linear(*size, bias=False).cuda().bfloat16() for size in ((1024, 16), (16, 1024)))
    optimizer = bnb.optim.PagedAdamW8bit([*down.parameters(), *up.parameters()], lr=1e-4)
    x = torch.empty(2, 64, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    (frozen(x) + up(down(x))).sum().backward()
    assert x.grad is not None
    assert not any(parameter.requires_grad for parameter in frozen[0].parameters() if parameter.dtype == torch.uint8)
    optimizer.step()


def test_adapters_train_beside_frozen_weights_of_four_bits():
    names = [kernel.op for kernel in _kernels(_train_adapter)]
    assert names.count("bitsandbytes::optimizer_update_8bit_blockwise") == 2
    assert "bitsandbytes::quantize_4bit" in names


def _optimize_pages() -> None:
    import bitsandbytes as bnb

    layer = torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16)  # pages hold states of 100,000 and more
    optimizer = bnb.optim.PagedAdamW32bit(layer.parameters())
    for _ in range(2):
        layer(torch.rand(8, 1024, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer.step()


def test_a_paged_optimizer_keeps_its_states_on_the_card():
    updates = [kernel for kernel in _kernels(_optimize_pages) if "optimizer_update_32bit" in kernel.op]
    assert len(updates) == 4, "two tensors in two steps"
    assert {spec.device for kernel in updates for spec in kernel.inputs} == {"cuda"}


@on_gpu()
@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed here")
def test_a_class_may_be_derived_from_a_base_of_which_there_is_only_the_name():
    from bitsandbytes.optim.optimizer import Optimizer2State

    class Projected(Optimizer2State): ...  # type: ignore[misc]

    with pytest.raises(ModuleNotFoundError, match="Projected is derived from a class of bitsandbytes"):
        Projected("adam", [])
