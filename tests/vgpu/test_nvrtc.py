"""Kernels in CUDA C++ that are compiled when a script hands over their source: recorded, never compiled."""

import torch
from tests.vgpu.virtual import rehearse

from sandtable.trace import Work
from sandtable.vgpu.packages.nvrtc import parameters_of

SOURCE = """
// scale(const int* decoy)
extern "C" __global__ void scale(const float* __restrict__ x, float *out, /* elements */ int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
"""


def test_parameters_are_read_from_the_source():
    assert parameters_of(SOURCE, "scale") == ["const float* __restrict__ x", "float *out", "int n"]
    assert parameters_of(SOURCE, "other") == []


def _launch() -> None:
    x, out = (torch.zeros(1000, device="cuda") for _ in range(2))
    kernel = torch.cuda._compile_kernel(SOURCE, "scale")
    kernel(grid=(4, 1, 1), block=(256, 1, 1), args=[x, out, 1000])
    function = torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T mean(T x, T y, T alpha) { return alpha * (x + y) / 2; }", alpha=1.0
    )
    assert function(x, out.half(), alpha=2.0).dtype == torch.float32


def test_a_launch_is_recorded_with_its_grid_and_what_it_writes():
    operators = [op.signature for op in rehearse(_launch).trace.rank(0).operators() if op.signature.work is not None]
    assert [signature.op for signature in operators] == ["nvrtc::scale", "jiterator::mean"]
    assert operators[0].work == Work(grid=(4, 1, 1))
    assert [len(signature.outputs) for signature in operators] == [1, 1]
