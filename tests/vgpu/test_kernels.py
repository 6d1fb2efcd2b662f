"""Launches of kernels that are not torch's: recorded with their tensors and their work."""

import torch
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.trace import Work


def _launch() -> None:
    from sandtable.vgpu.packages.kernels import record_kernel

    x = torch.ones(4, 8, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(4, 2, device="cuda", dtype=torch.bfloat16)
    work = Work(family="gemm", products=((1, 4, 2, 8),), bytes_read=100)
    for _ in range(2):
        record_kernel("package::kernel", inputs=[x], outputs=[y], work=work)
    record_kernel("package::kernel", inputs=[x], outputs=[y], work=Work())


def test_a_launch_is_recorded_with_its_tensors_and_its_work():
    operators = [op for op in rehearse(_launch).trace.rank(0).operators() if op.signature.op == "package::kernel"]
    assert [op.signature.work for op in operators] == [
        *[Work(family="gemm", products=((1, 4, 2, 8),), bytes_read=100)] * 2,
        Work(),
    ]
    assert [spec.shape for spec in operators[0].signature.inputs] == [(4, 8)]
    assert [spec.shape for spec in operators[0].signature.outputs] == [(4, 2)]


@on_gpu()
def test_values_that_a_kernel_writes_are_unknown():
    from sandtable.vgpu.packages.kernels import record_kernel
    from sandtable.vgpu.preload import loaded_core

    counter = torch.zeros(1, device="cuda")
    assert loaded_core().has_exact_value(counter)
    record_kernel("package::kernel", inputs=[], outputs=[counter], work=Work())
    assert not loaded_core().has_exact_value(counter)
