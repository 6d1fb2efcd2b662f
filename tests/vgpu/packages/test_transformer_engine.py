"""Transformer Engine: kernels of its layers against formulas, with its own Python if that is installed."""

from collections import Counter
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import rehearse

from sandtable.trace import Phase, flops

TOKENS, WIDTH, HEADS, BATCH = 256, 512, 8, 2
ATTENTION = ("transformer_engine::fused_attn_fwd", "transformer_engine::fused_attn_bwd")


def _operators(function: Any, rank: int = 0, **options: Any) -> list[Any]:
    return list(rehearse(function, **options).trace.rank(rank).operators())


def _ours(operators: list[Any], name: str) -> list[Any]:
    return [op for op in operators if op.signature.op == f"transformer_engine::{name}"]


def _train(scaling: str | None = None) -> None:
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as recipes

    kinds = {"delayed": recipes.DelayedScaling, "current": recipes.Float8CurrentScaling}
    layer = te.TransformerLayer(
        WIDTH, 4 * WIDTH, HEADS, fuse_qkv_params=True, params_dtype=torch.bfloat16, self_attn_mask_type="causal"
    )
    optimizer = te.optimizers.FusedAdam(layer.parameters())
    x = torch.empty(TOKENS, BATCH, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for _ in range(2):
        with te.fp8_autocast(enabled=scaling is not None, fp8_recipe=kinds[scaling]() if scaling else None):
            output = layer(x)
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_products_and_attention_of_a_layer_are_those_of_the_formulas():
    trace = rehearse(_train, cluster="dgx-h100").trace
    view = trace.rank(0)
    step = list(view.operators(view.step_slices()[1]))
    products = sum(flops(op.signature) for op in _ours(step, "gemm"))
    assert products == 3 * 2 * TOKENS * BATCH * 12 * WIDTH**2  # forward, and backward for inputs and for weights
    square = 2 * BATCH * TOKENS**2 * WIDTH
    attention = {op.signature.op: flops(op.signature) for op in step if op.signature.op in ATTENTION}
    assert attention == {ATTENTION[0]: 2 * square, ATTENTION[1]: 5 * square}
    assert all(True in op.signature.arguments for op in step if op.signature.op in ATTENTION)  # the mask is causal
    (update,) = _ours(step, "multi_tensor_adam")
    assert update.phase == Phase.OPTIMIZER
    assert trace.num_steps == 2


@pytest.mark.parametrize("scaling", ["delayed", "current"])
def test_products_in_fp8_follow_casts(scaling: str):
    operators = _operators(_train, cluster="dgx-h100", arguments={"scaling": scaling})
    products = _ours(operators, "gemm")
    assert Counter(op.signature.work.dtype for op in products) == {"float8_e4m3fn": 2 * 4 * 3}
    assert all(op.signature.inputs[0].dtype == "uint8" for op in products)
    casts = _ours(operators, "quantize")
    assert all(op.signature.outputs[0].size_bytes == op.signature.inputs[0].size_bytes // 2 for op in casts)
    assert bool(_ours(operators, "compute_amax")) == (scaling == "current")


def _accumulate() -> None:
    import transformer_engine.pytorch as te

    layer = te.Linear(WIDTH, 3 * WIDTH, bias=False, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True)
    layer.weight.main_grad = torch.zeros(3 * WIDTH, WIDTH, device="cuda")
    layer.weight.grad_added_to_main_grad = False
    layer(torch.empty(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)).sum().backward()


def test_a_weights_gradient_is_added_in_float32():
    *_, gradient = _ours(_operators(_accumulate), "gemm")
    assert gradient.signature.work.products == ((1, 3 * WIDTH, WIDTH, TOKENS),)
    (written,) = gradient.signature.outputs
    assert (written.dtype, written.shape) == ("float32", (3 * WIDTH, WIDTH))
    assert written in gradient.signature.inputs


def _cut_by_tensor() -> None:
    import torch.distributed as dist
    import transformer_engine.pytorch as te

    dist.init_process_group("nccl")
    shared = {"tp_group": dist.group.WORLD, "tp_size": 4, "sequence_parallel": True, "params_dtype": torch.bfloat16}
    first = te.LayerNormLinear(WIDTH, 4 * WIDTH, bias=False, parallel_mode="column", **shared)
    second = te.Linear(4 * WIDTH, WIDTH, bias=False, parallel_mode="row", **shared)
    x = torch.empty(TOKENS // 4, BATCH, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    output = second(first(x))
    assert output.shape == x.shape
    output.sum().backward()
    assert first.weight.shape == (WIDTH, WIDTH)
    assert second.weight.shape == (WIDTH, WIDTH)


def test_sequence_parallelism_gathers_and_scatters_the_sequence():
    view = rehearse(_cut_by_tensor, ranks=4).trace.rank(1)
    whole = TOKENS * BATCH * WIDTH * 2
    calls = [(call.op, call.bytes_out) for call in view.collectives() if call.bytes_out > 1000]
    gathers = [size for op, size in calls if op == "all_gather"]
    scatters = [size for op, size in calls if op == "reduce_scatter"]
    assert gathers == [whole] * 3  # the input forward and again for its weights, and the gradient of the output
    assert scatters == [whole // 4] * 2


def _experts() -> None:
    import transformer_engine.pytorch as te

    layer = te.GroupedLinear(3, WIDTH, 2 * WIDTH, bias=False, params_dtype=torch.bfloat16)
    x = torch.empty(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer(x, [100, 0, TOKENS - 100]).sum().backward()


def test_a_grouped_product_has_the_rows_of_each_expert():
    forward, *backward = _ours(_operators(_experts), "grouped_gemm")
    rows = [(1, 100, 2 * WIDTH, WIDTH), (1, TOKENS - 100, 2 * WIDTH, WIDTH)]
    assert list(forward.signature.work.products) == rows
    assert sum(flops(op.signature) for op in backward) == 2 * flops(forward.signature)


def _multiply_in_nvfp4() -> None:
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as recipes

    layer = te.Linear(WIDTH, WIDTH, bias=False, params_dtype=torch.bfloat16)
    x = torch.empty(TOKENS, 1, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with te.fp8_autocast(fp8_recipe=recipes.NVFP4BlockScaling()):
        output = layer(x)
    output.sum().backward()


@pytest.mark.skipif(find_spec("transformer_engine") is None, reason="the replacement has no NVFP4")
def test_products_in_nvfp4_may_have_a_batch_of_one():
    products = _ours(_operators(_multiply_in_nvfp4, cluster="dgx-b200"), "gemm")
    assert [flops(op.signature) for op in products] == 3 * [2 * TOKENS * WIDTH * WIDTH]
