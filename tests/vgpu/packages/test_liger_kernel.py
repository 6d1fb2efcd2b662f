"""liger-kernel: its own Python on the recorder of Triton kernels, or layers of ours."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import rehearse

from sandtable.cluster import load_device
from sandtable.engine.compute import CostModel

IS_INSTALLED = find_spec("liger_kernel") is not None
BATCH, LENGTH, LAYERS = 2, 512, 3


def _train() -> None:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    from liger_kernel.transformers import LigerCrossEntropyLoss, LigerRMSNorm

    x: Any = torch.empty(4, 512, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    LigerRMSNorm(1024).cuda().bfloat16()(x).sum().backward()
    LigerSiLUMulFunction.apply(x, x).sum().backward()
    logits: Any = torch.empty(2048, 32000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    LigerCrossEntropyLoss()(logits, torch.zeros(2048, device="cuda", dtype=torch.int64)).backward()
    assert (x.grad.shape, logits.grad.shape) == (x.shape, logits.shape)


@pytest.mark.skipif(not IS_INSTALLED, reason="liger-kernel is not installed")
def test_layers_are_kernels_of_their_family():
    operators = rehearse(_train).trace.rank(0).operators()
    by_name: dict[str, Any] = {
        op.signature.op.removeprefix("triton::"): op.signature for op in operators if op.signature.work
    }
    assert by_name["_rms_norm_forward_kernel"].work.family == "normalisation"
    assert by_name["_rms_norm_backward_kernel"].work.family == "normalisation"
    assert by_name["_swiglu_forward_kernel"].work.family == "elementwise"
    assert by_name["liger_cross_entropy_kernel"].work.bytes_read == 2 * 2048 * 32000 * 2


def _make_a_missing_loss() -> None:
    from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss

    with pytest.raises(ModuleNotFoundError, match="LigerFusedLinearDPOLoss needs liger_kernel"):
        LigerFusedLinearDPOLoss(beta=0.1)
    torch.ones(8, device="cuda").sum()


@pytest.mark.skipif(IS_INSTALLED, reason="liger-kernel is installed")
def test_losses_without_a_replacement_can_be_imported_and_say_what_is_missing_when_made():
    rehearse(_make_a_missing_loss)


def _train_llama(on_instance: bool) -> None:
    from liger_kernel.transformers import _apply_liger_kernel_to_instance, apply_liger_kernel_to_llama
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=LAYERS, vocab_size=4096,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    if not on_instance:
        apply_liger_kernel_to_llama()
    model: Any = LlamaForCausalLM(config)
    model = model.cuda().bfloat16().train()
    if on_instance:
        _apply_liger_kernel_to_instance(model=model)
    tokens = torch.randint(0, 4096, (BATCH, LENGTH), device="cuda")
    output = model(input_ids=tokens, labels=tokens)
    assert output.logits is None
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.eval()(input_ids=tokens).logits.shape == (BATCH, LENGTH, 4096)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("on_instance", [False, True])
def test_models_of_transformers_are_patched(on_instance: bool):
    """With the package or without it: norms are one kernel, and the loss has a sixteenth of the logits at a time."""
    done = rehearse(_train_llama, arguments={"on_instance": on_instance})
    operators = [op.signature for op in done.trace.rank(0).operators()]
    norms = [op for op in operators if op.op in ("triton::_rms_norm_forward_kernel", "liger_kernel::rms_norm")]
    losses = [op for op in operators if op.op in ("triton::liger_cross_entropy_kernel", "liger_kernel::cross_entropy")]
    assert len(norms) == 2 * (2 * LAYERS + 1)  # in training and in evaluation
    assert len(losses) == 4096 // 256
    assert {loss.inputs[0].shape for loss in losses} == {(BATCH * LENGTH // 16, 4096)}
    assert bool(done.notes("missing package")) or IS_INSTALLED


def _lose() -> None:
    from liger_kernel.transformers import LigerCrossEntropyLoss, LigerFusedLinearCrossEntropyLoss, LigerRMSNorm

    x: Any = torch.empty(2048, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight: Any = torch.empty(8192, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.zeros(2048, device="cuda", dtype=torch.int64)
    LigerFusedLinearCrossEntropyLoss()(weight, LigerRMSNorm(512).cuda().bfloat16()(x), target).backward()
    assert (x.grad.shape, weight.grad.shape) == (x.shape, weight.shape)
    logits: Any = torch.empty(2048, 8192, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    LigerCrossEntropyLoss()(logits, target).backward()
    assert logits.grad.shape == logits.shape


def test_the_fused_loss_multiplies_three_times_with_the_output_layer():
    model = CostModel(load_device("a100-sxm4-80gb"))
    operators = [op.signature for op in rehearse(_lose).trace.rank(0).operators()]
    flops = sum(model.cost(signature).flops for signature in operators if "mm" in signature.name)
    assert flops == 3 * 2 * 2048 * 512 * 8192
