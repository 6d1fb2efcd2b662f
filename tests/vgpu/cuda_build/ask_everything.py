"""A script that asks for the card in every way it can think of; it runs on one virtual rank, and prints "done".

Some of it a rehearsal does not do and says so; none of it may reach the driver.
"""

import contextlib
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch

import sandtable

warnings.simplefilter("ignore")
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"


def ask_early() -> None:
    """What libraries ask when they are imported."""
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 8
    assert torch.version.cuda
    assert torch.cuda.get_device_capability() >= (7, 0)
    assert torch.cuda.get_arch_list()
    assert torch.backends.cudnn.version() > 0
    assert torch.cuda.nccl.version() > (2, 0)
    assert torch.cuda.is_bf16_supported()
    torch.cuda.mem_get_info()
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.can_device_access_peer(0, 1)


def ask_libraries() -> None:
    """cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE, cuRAND: whatever an operator would use."""
    square = torch.eye(3, device="cuda") * 2
    assert float(torch.linalg.det(square)) == 8
    torch.linalg.svd(square)
    torch.linalg.cholesky(square)
    torch.linalg.solve(torch.randn(64, 64, device="cuda"), torch.randn(64, 2, device="cuda"))
    torch.fft.rfft(torch.randn(512, 512, device="cuda"))
    torch.nn.LSTM(8, 8).cuda()(torch.randn(5, 2, 8, device="cuda"))[0].sum().backward()
    torch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 32, 32, device="cuda")).sum().backward()
    torch.sparse.mm(torch.eye(4).to_sparse().cuda(), torch.randn(4, 4, device="cuda"))
    torch.randn(1 << 20, device="cuda").topk(5)
    torch.bmm(torch.randn(8, 64, 1, device="cuda"), torch.randn(8, 1, 64, device="cuda"))
    torch.ops.aten._foreach_mm([torch.randn(64, 64, device="cuda")] * 2, [torch.randn(64, 64, device="cuda")] * 2)


def _pointwise(tensor: torch.Tensor) -> torch.Tensor:
    return torch.tanh(tensor * 2.0 + 1.0) * tensor


def _other_pointwise(tensor: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(tensor * 3.0) + tensor


def ask_tools() -> None:
    """The profiler, markers, streams, graphs' pools, pinned memory, compilers."""
    from torch.profiler import ProfilerActivity, profile
    from torch.utils._triton import has_triton

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]), torch.cuda.nvtx.range("a range"):
        torch.ones(8, device="cuda").sum()
    has_triton()
    torch.compile(lambda tensor: tensor + 1)(torch.ones(8, device="cuda"))
    scripted = torch.jit.script(_pointwise)
    for _ in range(4):  # after a few calls TorchScript would compile a kernel
        scripted(torch.ones(8, device="cuda", requires_grad=True)).sum().backward()
    torch._C._jit_override_can_fuse_on_gpu(True)
    torch.jit.script(_other_pointwise)(torch.ones(8, device="cuda"))
    torch.cuda.graph_pool_handle()
    torch.cuda.empty_cache()
    torch.cuda.memory._snapshot()
    torch.empty(1024).pin_memory().cuda(non_blocking=True)
    torch.cuda.Stream(priority=-1).synchronize()


def refused() -> list[Callable[[], Any]]:
    """What a rehearsal does not do."""
    return [
        lambda: torch.cuda.CUDAGraph(),
        lambda: torch._C._cuda_jiterator_compile_and_launch_kernel("", "", False, 1, (), {}),
        lambda: torch.quantize_per_tensor(torch.randn(4, device="cuda"), 0.1, 0, torch.qint8).dequantize(),
        lambda: torch.nested.nested_tensor([torch.randn(2, device="cuda"), torch.randn(3, device="cuda")]) * 2,
        lambda: torch.eye(4).to_sparse_csr().cuda() @ torch.randn(4, 4, device="cuda"),
        lambda: torch.cuda.utilization(),
        lambda: torch.cuda.tunable.get_validators(),
        lambda: torch.distributed._symmetric_memory.empty(4, device=torch.device("cuda")),
        lambda: torch.randn(4, device="cuda").__dlpack__(),
        lambda: torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free"),
    ]


ask_early()
ask_libraries()
ask_tools()
for ask in refused():
    with contextlib.suppress(Exception):
        ask()
print("done")
sandtable.step()  # a run without a step fails
