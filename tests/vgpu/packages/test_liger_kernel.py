"""liger-kernel: its own Python on the recorder of Triton kernels."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tests.vgpu.virtual import rehearse

pytestmark = pytest.mark.skipif(find_spec("liger_kernel") is None, reason="liger-kernel is not installed")


def _train() -> None:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    from liger_kernel.transformers import LigerCrossEntropyLoss, LigerRMSNorm

    x: Any = torch.empty(4, 512, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    LigerRMSNorm(1024).cuda().bfloat16()(x).sum().backward()
    LigerSiLUMulFunction.apply(x, x).sum().backward()
    logits: Any = torch.empty(2048, 32000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    LigerCrossEntropyLoss()(logits, torch.zeros(2048, device="cuda", dtype=torch.int64)).backward()
    assert (x.grad.shape, logits.grad.shape) == (x.shape, logits.shape)


def test_layers_are_kernels_of_their_family():
    operators = rehearse(_train).trace.rank(0).operators()
    by_name: dict[str, Any] = {
        op.signature.op.removeprefix("triton::"): op.signature for op in operators if op.signature.work
    }
    assert by_name["_rms_norm_forward_kernel"].work.family == "normalisation"
    assert by_name["_rms_norm_backward_kernel"].work.family == "normalisation"
    assert by_name["_swiglu_forward_kernel"].work.family == "elementwise"
    assert by_name["liger_cross_entropy_kernel"].work.bytes_read == 2 * 2048 * 32000 * 2
