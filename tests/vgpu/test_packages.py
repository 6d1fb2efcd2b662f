"""Compiled packages: their kernels become operators of the virtual GPU; `tests/examples` runs the real packages."""

import textwrap
from pathlib import Path

import pytest

from sandtable import LaunchOptions, Rehearsal, rehearse

BUILDER = """
class OpBuilder:
    def __init__(self, name):
        self.name = name

    def load(self, verbose=True):
        raise AssertionError("this would start a compiler")


class CUDAOpBuilder(OpBuilder):
    pass
"""
HEAD = """
import sandtable, torch
from deepspeed.ops.op_builder.builder import CUDAOpBuilder, OpBuilder

tensors = [[torch.zeros(size, device="cuda") for size in (1000, 3000)] for _ in range(4)]
"""


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that rehearses a script beside a package that looks like DeepSpeed."""
    package = tmp_path / "deepspeed" / "ops" / "op_builder"
    package.mkdir(parents=True)
    (package / "builder.py").write_text(BUILDER)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")

    def run(body: str) -> Rehearsal:
        script = tmp_path / "train.py"
        script.write_text(HEAD + textwrap.dedent(body) + "\nsandtable.step()\n")
        return rehearse(script, steps=1, options=LaunchOptions(ranks_per_node=1))

    return run


def test_a_kernel_of_deepspeed_is_an_operator_on_the_tensors_that_it_moves(run):
    rehearsal = run(
        """
        adam = OpBuilder("fused_adam").load()
        adam.multi_tensor_adam(65536, torch.zeros(1), tensors, 1e-3, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)
        coefficient = OpBuilder("fused_lamb").load().lamb(
            tensors[0][0], torch.empty(0), tensors[1][0], tensors[2][0], tensors[3][0], *[0.0] * 11
        )
        assert coefficient.is_cuda and coefficient.item() > 0
        """
    )
    by_name = {signature.op: signature for signature in rehearsal.trace.signatures}
    assert [spec.num_elements for spec in by_name["deepspeed::multi_tensor_adam"].inputs] == [1000, 3000] * 4
    assert len(by_name["deepspeed::lamb"].inputs) == 4
    assert rehearsal.step_seconds > 0


def test_parameters_may_require_gradients(run):
    rehearsal = run(
        """
        parameters = [tensor.requires_grad_() for tensor in tensors[0]]
        OpBuilder("fused_lion").load().multi_tensor_lion(65536, torch.zeros(1), [tensors[1], parameters, tensors[2]])
        """
    )
    assert rehearsal.error is None


def test_a_kernel_without_a_replacement_is_named(run):
    error = run("CUDAOpBuilder('transformer_inference').load()").error
    assert error is not None
    assert "'transformer_inference' must have a replacement" in str(error)


def test_the_time_of_an_update_follows_from_its_bytes(run):
    shorter, longer = (
        run(f"OpBuilder('fused_adam').load().multi_tensor_adam(1, None, {lists})").timeline.step_ns
        for lists in ("tensors", "[[torch.zeros(10**9, device='cuda')] for _ in range(4)]")
    )
    assert longer > shorter + 1e7


def test_quantized_tensors_have_their_bits_and_a_scale_per_group(run):
    rehearsal = run(
        """
        quantizer = OpBuilder("quantizer").load()
        values = torch.zeros(4096, device="cuda", dtype=torch.bfloat16)
        integers, scales = quantizer.quantize(values, 8, 8, quantizer.Symmetric)
        assert integers.shape == (4096,) and integers.dtype == torch.int8 and scales.shape == (8, 1)
        halves, offsets = quantizer.swizzle_quant(values, 8, 4, quantizer.Asymmetric, 1, 2, 4)
        assert halves.shape == (2048,) and offsets.shape == (8, 2)
        reduced, _ = quantizer.quantized_reduction(halves, offsets, 8, 2, 4, quantizer.Symmetric, 4)
        assert reduced.shape == (512,)
        assert quantizer.dequantize(halves, offsets, 8, 4, quantizer.Asymmetric).shape == (4096,)
        """
    )
    assert rehearsal.error is None
    names = {signature.op for signature in rehearsal.trace.signatures if signature.work}
    assert names >= {"deepspeed::quantize", "deepspeed::swizzle_quant", "deepspeed::quantized_reduction"}
