"""apex: fused optimizers, norms and Megatron-LM's kernels, of the installed package or of what stands in for it."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.trace import Phase

IS_INSTALLED = find_spec("apex") is not None


def _operators(function: Any) -> list[Any]:
    return [op for op in rehearse(function).trace.rank(0).operators() if op.signature.op.startswith("apex::")]


def _train() -> None:
    from apex.normalization import FusedLayerNorm, FusedRMSNorm
    from apex.optimizers import FusedAdam

    model = torch.nn.Sequential(FusedLayerNorm(512), torch.nn.Linear(512, 512), FusedRMSNorm(512)).cuda()
    optimizer = FusedAdam(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(torch.empty(16, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert {state.shape for state in optimizer.state[model[1].weight].values() if torch.is_tensor(state)} == {
        model[1].weight.shape
    }


def test_norms_and_optimizers_are_one_kernel_each_way():
    operators = _operators(_train)
    names = [op.signature.op.removeprefix("apex::") for op in operators]
    assert names == ["layer_norm", "rms_norm", "rms_norm_backward", "layer_norm_backward", "multi_tensor_adam"] * 2
    norm, *_, update = operators
    assert [spec.shape for spec in norm.signature.outputs] == [(16, 512), (16,), (16,)]
    assert update.phase == Phase.OPTIMIZER
    assert len(update.signature.inputs) == 4 * 5  # gradient, parameter and two moments of five tensors
    assert len(update.signature.outputs) == 3 * 5


def test_the_steps_of_a_fused_optimizer_are_steps():
    assert rehearse(_train).trace.num_steps == 2


def _call_megatron_kernels() -> None:
    import fused_weight_gradient_mlp_cuda
    import scaled_upper_triang_masked_softmax_cuda as softmax

    x = torch.empty(4096, 1024, device="cuda", dtype=torch.bfloat16)
    grad = torch.empty(4096, 512, device="cuda", dtype=torch.bfloat16)
    main_grad = torch.zeros(512, 1024, device="cuda")
    fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(x, grad, main_grad)
    scores = torch.empty(8, 128, 128, device="cuda", dtype=torch.bfloat16)
    assert softmax.backward(scores, softmax.forward(scores, 0.5), 0.5) is scores


def test_a_gradient_is_accumulated_by_its_product():
    product, forward, backward = _operators(_call_megatron_kernels)
    assert product.signature.work.products == ((1, 512, 1024, 4096),)
    assert product.signature.work.dtype == "bfloat16"
    assert [spec.dtype for spec in product.signature.outputs] == ["float32"]
    assert forward.signature.op == "apex::scaled_upper_triang_masked_softmax"
    assert backward.signature.op == "apex::scaled_upper_triang_masked_softmax_backward"


@pytest.mark.skipif(IS_INSTALLED, reason="apex is installed here")
def test_a_compiled_module_alone_leaves_the_note():
    (note,) = rehearse(_call_megatron_kernels).notes("missing package")
    assert "--without apex" in note.text


@on_gpu()
def test_the_package_alone_brings_its_optimizers():
    import apex

    assert apex.optimizers.FusedAdam
    assert apex.normalization.FusedLayerNorm


@on_gpu()
def test_lists_of_tensors():
    import amp_C
    from apex.multi_tensor_apply import multi_tensor_applier

    grads = [torch.ones(size, device="cuda") for size in (100, 200)]
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    norm, each = multi_tensor_applier(amp_C.multi_tensor_l2norm, flag, [grads], True)
    assert (norm.shape, each.shape) == ((1,), (2,))
    multi_tensor_applier(amp_C.multi_tensor_scale, flag, [grads, grads], 0.5)
    assert flag.item() == 0
