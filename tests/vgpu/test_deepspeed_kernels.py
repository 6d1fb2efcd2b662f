"""Quantizers and attention of DeepSpeed leave records of their work, with the arguments that its Python passes."""

import textwrap
from pathlib import Path

import pytest

from sandtable import LaunchOptions, Rehearsal, rehearse

pytest.importorskip("deepspeed")


def _rehearse(body: str, tmp_path: Path) -> Rehearsal:
    script = tmp_path / "train.py"
    script.write_text("import sandtable, torch\n" + textwrap.dedent(body) + "\nsandtable.step()\n")
    return rehearse(script, cluster="dgx-a100", steps=1, options=LaunchOptions(ranks_per_node=1))


def test_evoformer_attention_is_priced_by_its_products_and_gives_gradients_of_both_biases(tmp_path: Path) -> None:
    run = _rehearse(
        """
        from deepspeed.ops.deepspeed4science import DS4Sci_EvoformerAttention

        like = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
        q, k, v = (torch.rand(1, 128, 256, 8, 32, **like) for _ in range(3))
        row, pair = torch.rand(1, 128, 1, 1, 256, **like), torch.rand(1, 1, 8, 256, 256, **like)
        DS4Sci_EvoformerAttention(q, k, v, [row, pair]).sum().backward()
        assert all(each.grad.shape == each.shape for each in (q, k, v, row, pair))
        """,
        tmp_path,
    )
    assert run.error is None
    flops = {one.op: one.work.flops for one in run.trace.signatures if one.work and one.work.family == "attention"}
    product = 2 * 128 * 8 * 256 * 256 * 32
    assert flops == {
        "deepspeed::evoformer_attention": 2 * product,
        "deepspeed::evoformer_attention_backward": 5 * product,
    }


def test_floats_are_quantized_and_restored_by_their_bytes(tmp_path: Path) -> None:
    run = _rehearse(
        """
        from types import SimpleNamespace
        from deepspeed.ops.fp_quantizer import FP_Quantize

        weight = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
        quantizer = FP_Quantize(SimpleNamespace(group_size=512))
        small = quantizer.quantize(weight, q_bits=6)
        assert small.nbytes == weight.numel() // 512 * (512 * 6 // 8 + 4)
        assert quantizer.dequantize(small, q_bits=6).shape == weight.shape
        """,
        tmp_path,
    )
    assert run.error is None
    names = [op.signature.op for op in run.trace.rank(0).operators() if op.signature.work]
    assert names == ["deepspeed::fp_quantize", "deepspeed::fp_dequantize"]
