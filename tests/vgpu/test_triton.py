"""Triton: launches are recorded and nothing is compiled, with the installed package or, where there is none, ours."""

from __future__ import annotations

import pytest
import torch
from tests.vgpu.virtual import on_gpu, rehearse

from sandtable.trace import Signature, Trace, Work


def _launches(trace: Trace) -> list[Signature]:
    return [op.signature for op in trace.rank(0).operators() if op.signature.op.startswith("triton::")]


def _elements(specs) -> list[int]:
    return [spec.num_elements for spec in specs]


def _launch() -> None:
    import triton
    from tests.vgpu import triton_kernels as kernels

    x, y, out = (torch.zeros(1000, device="cuda") for _ in range(3))
    kernels.add[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 2)](x, y, out, 1000, BLOCK=256)
    kernels.add[(0,)](x, y, out, 1000, BLOCK=256)
    kernels.add[(3,)](x, x, x, 1000, BLOCK=256)
    kernels.add_op(x, y)


def test_a_launch_is_recorded_with_its_grid_and_the_tensors_that_it_reads_and_writes():
    two_dim, in_place, of_op = _launches(rehearse(_launch).trace)
    assert two_dim.op == "triton::add"
    assert two_dim.work == Work(grid=(4, 2))
    assert _elements(two_dim.inputs) == [1000, 1000]
    assert _elements(two_dim.outputs) == [1000]
    assert _elements(in_place.inputs) == _elements(in_place.outputs) == [1000]
    assert of_op.work == Work(grid=(4,))


def _gather() -> None:
    from tests.vgpu import triton_kernels as kernels

    index, table = torch.zeros(10, dtype=torch.int32, device="cuda"), torch.zeros(5000, device="cuda")
    kernels.gather[(10,)](index, table, torch.zeros(640, device="cuda"), torch.zeros(1, device="cuda"), BLOCK=64)


def test_what_was_loaded_is_no_pointer_and_what_is_added_to_is_read_and_written():
    (gather,) = _launches(rehearse(_gather).trace)
    assert _elements(gather.inputs) == [10, 5000, 1]
    assert _elements(gather.outputs) == [640, 1]


def _tune() -> None:
    from tests.vgpu import triton_kernels as kernels

    a = torch.zeros(96, 96, device="cuda")
    kernels.product[lambda meta: (meta["n"] // meta["BLOCK"] + meta["EVEN"],)](a, a.clone(), a.clone(), 96)
    assert kernels.product.best_config.kwargs == {"BLOCK": 64}


def test_autotuning_takes_the_first_configuration_that_pruning_leaves_and_heuristics_are_evaluated():
    rehearsal = rehearse(_tune)
    (product,) = _launches(rehearsal.trace)
    assert product.work is not None
    assert product.work.grid == (1,)
    assert product.work.flops == 2 * 64**2  # of a column with a row, both of 64 elements


def _multiply() -> None:
    import triton
    from tests.vgpu import triton_kernels as kernels

    for dtype in (torch.bfloat16, torch.float32):
        a, b, c = (torch.zeros(*size, device="cuda", dtype=dtype) for size in ((1000, 500), (500, 2000), (1000, 2000)))
        grid = (triton.cdiv(1000, 128) * triton.cdiv(2000, 64),)
        kernels.multiply[grid](a, b, c, 1000, 2000, 500, BLOCK_M=128, BLOCK_N=64, BLOCK_K=32)


def test_products_of_a_matrix_multiplication_are_those_of_its_tiles():
    rehearsal = rehearse(_multiply)
    in_bf16, in_float32 = (launch.work for launch in _launches(rehearsal.trace))
    assert in_bf16 is not None
    assert in_float32 is not None
    assert in_bf16.flops == in_float32.flops == 2 * 1024 * 2048 * 512  # each side in whole tiles
    assert (in_bf16.family, in_bf16.dtype, in_bf16.basis, in_float32.dtype) == ("gemm", "bfloat16", "nominal", "tf32")
    assert not rehearsal.notes("undescribed product")


def _attend() -> None:
    from tests.vgpu import triton_kernels as kernels

    q, k, v, out = (torch.zeros(3, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    for causal in (False, True):
        kernels.attend[(4096 // 64, 3)](q, k, v, out, 4096, DIM=128, BLOCK=64, CAUSAL=causal)


def test_products_of_flash_attention_follow_its_loops():
    """A block of queries meets all blocks of keys, or, with a causal mask, those up to its own: (n + 1) / 2 of n."""
    full, causal = (launch.work for launch in _launches(rehearse(_attend).trace))
    assert full is not None
    assert causal is not None
    flops = 4 * 3 * 4096 * 4096 * 128
    assert full.flops == flops
    assert causal.flops == flops * (64 + 1) // (2 * 64)
    assert full.dtype == "bfloat16"


def _multiply_halves() -> None:
    from tests.vgpu import triton_kernels as kernels
    from triton.tools.tensor_descriptor import TensorDescriptor

    a, b, out = (torch.zeros(size, 64, device="cuda", dtype=torch.bfloat16) for size in (64 * 12, 64, 64 * 12))
    a, b, out = (TensorDescriptor.from_tensor(tensor, [64, 64]) for tensor in (a, b, out))
    kernels.multiply_halves[(4,)](a, b, out, 12, NUM_PROGRAMS=4, BLOCK=64)


def test_products_of_blocks_that_are_split_and_joined_count():
    (launch,) = _launches(rehearse(_multiply_halves).trace)
    assert launch.work is not None
    assert launch.work.flops == 12 * 2 * 64**3


def _multiply_symmetric() -> None:
    from tests.vgpu import triton_kernels as kernels

    a, out = (torch.zeros(960, 960, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    kernels.multiply_symmetric[(15 * 15,)](a, out, 960, 960, BLOCK=64)


def test_products_of_tiles_on_one_side_of_the_diagonal_count_and_no_others():
    (launch,) = _launches(rehearse(_multiply_symmetric).trace)
    assert launch.work is not None
    assert launch.work.flops == (15 * 16 // 2) * 15 * 2 * 64**3


def _multiply_some() -> None:
    from tests.vgpu import triton_kernels as kernels

    a, count = torch.zeros(64, 64, device="cuda"), torch.ones(1, dtype=torch.int32, device="cuda")
    kernels.multiply_some[(1,)](a, count, torch.zeros(64, 64, device="cuda"), BLOCK=64)


def test_products_that_depend_on_values_are_noted():
    rehearsal = rehearse(_multiply_some)
    (launch,) = _launches(rehearsal.trace)
    assert launch.work == Work(grid=(1,))
    (note,) = rehearsal.notes("undescribed product")
    assert (
        "the Triton kernel tests.vgpu.triton_kernels.multiply_some computes matrix products whose number" in note.text
    )


def _describe() -> None:
    from tests.vgpu import triton_kernels as kernels

    from sandtable.vgpu.packages.kernels import describe_kernel

    describe_kernel(
        "tests.vgpu.triton_kernels.product",
        lambda n, **_: Work(family="gemm", products=((1, n, n, n),)),
    )
    a = torch.zeros(96, 96, device="cuda")
    kernels.product[(1,)](a, a.clone(), a.clone(), 96)


def test_a_described_kernel_does_the_described_work():
    rehearsal = rehearse(_describe)
    (product,) = _launches(rehearsal.trace)
    assert product.work == Work(family="gemm", products=((1, 96, 96, 96),), grid=(1,))
    assert not rehearsal.notes("undescribed product")


@on_gpu()
def test_values_that_a_launch_writes_are_unknown_and_those_it_reads_are_not():
    from tests.vgpu import triton_kernels as kernels

    from sandtable.vgpu.preload import loaded_core

    x, y, out = (torch.zeros(8, device="cuda") for _ in range(3))
    kernels.add[(1,)](x, y, out, 8, BLOCK=8)
    assert [loaded_core().has_exact_value(tensor) for tensor in (x, y, out)] == [True, True, False]


@on_gpu()
def test_a_tensor_on_the_host_is_refused_as_by_triton():
    from tests.vgpu import triton_kernels as kernels

    x = torch.zeros(8, device="cuda")
    with pytest.raises(ValueError, match=r"argument y_ptr of the Triton kernel .* must be on the card"):
        kernels.add[(1,)](x, torch.zeros(8), x, 8, BLOCK=8)


def _copy_by_descriptor() -> None:
    from tests.vgpu import triton_kernels as kernels
    from triton.tools.tensor_descriptor import TensorDescriptor

    source, target = (torch.zeros(64, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    views = [TensorDescriptor.from_tensor(tensor, [32, 32]) for tensor in (source, target)]
    compiled = kernels.copy_blocks.warmup(*views, BLOCK=32, grid=(1,))
    compiled[(6, 1, 1)](*views)


def test_descriptors_are_the_tensors_below_them_and_a_compiled_kernel_can_be_launched():
    (copied,) = _launches(rehearse(_copy_by_descriptor).trace)
    assert _elements(copied.inputs) == _elements(copied.outputs) == [64 * 128]
    assert copied.work == Work(grid=(6, 1, 1))


@on_gpu(cluster="dgx-h100")
def test_the_driver_answers_for_the_rehearsed_card():
    import triton
    from torch.utils._triton import has_triton

    driver = triton.runtime.driver.active
    target = driver.get_current_target()
    assert (target.backend, target.arch, target.warp_size) == ("cuda", 90, 32)
    assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 132
    assert driver.get_active_torch_device() == torch.device("cuda", 0)
    assert triton.testing.do_bench(lambda: None) > 0
    assert has_triton()


@on_gpu()
def test_numbers_and_names_that_kernels_are_defined_with():
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    assert [triton.cdiv(7, 2), triton.next_power_of_2(5), triton.next_power_of_2(8)] == [4, 8, 8]
    assert {torch.float32: tl.float32}[torch.float32] is tl.float32
    assert libdevice.tanh is not None
    assert (tl.constexpr(3) + 4).value == 7


def _compile_around_kernel() -> None:
    from tests.vgpu import triton_kernels as kernels

    @torch.compile(fullgraph=True)
    def layer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernels.add[(4,)](x, y, out, 1000, BLOCK=256)
        return out + 1

    layer(torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda"))


def test_kernels_inside_a_compiled_graph_are_launched():
    signatures = [op.signature for op in rehearse(_compile_around_kernel).trace.rank(0).operators()]
    (add,) = [signature for signature in signatures if signature.op == "triton::add"]
    assert (_elements(add.inputs), _elements(add.outputs)) == ([1000, 1000], [1000])


_COPY_OF_INDUCTOR = """
@triton_heuristics.user_autotune(
    configs=[{'num_warps': 4}],
    triton_meta={'signature': {'a_ptr': '*bf16', 'b_ptr': '*bf16', 'c_ptr': '*bf16', 'M': 'i32', 'N': 'i32', 'K': 'i32',
                               'BLOCK_M': 'constexpr', 'BLOCK_N': 'constexpr', 'BLOCK_K': 'constexpr'},
                 'device': DeviceProperties(type='cuda', index=0), 'kind': tl.float32,
                 'constants': {'BLOCK_M': 64, 'BLOCK_N': 64, 'BLOCK_K': 32}},
)
@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr): ...
"""


def _multiply_from_graph() -> None:
    from tests.vgpu import triton_kernels as kernels

    from sandtable.vgpu.compile.script_kernel import ScriptKernel

    shapes = ((512, 1024), (1024, 256), (512, 256))
    a, b, c = (torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    ScriptKernel(kernels.multiply.fn, _COPY_OF_INDUCTOR).run(a, b, c, 512, 256, 1024, 32, 1, 1, stream=0)


def test_products_of_a_kernel_count_where_a_compiled_graph_launches_it():
    signatures = [op.signature for op in rehearse(_multiply_from_graph).trace.rank(0).operators()]
    (multiply,) = [signature for signature in signatures if signature.op == "triton::multiply"]
    assert multiply.work is not None
    assert (multiply.work.flops, multiply.work.dtype) == (2 * 512 * 256 * 1024, "bfloat16")
    assert multiply.work.grid == (32, 1, 1)


def _multiply_with_a_one_from_graph() -> None:
    from tests.vgpu import triton_kernels as kernels

    from sandtable.vgpu.compile.script_kernel import ScriptKernel

    copy = _COPY_OF_INDUCTOR.replace("'K': 'i32'", "'K': 'constexpr'").replace(
        "'BLOCK_K': 32}", "'BLOCK_K': 32, 'K': 1}"
    )
    a, b, c = (torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for shape in ((512, 1), (1, 256), (512, 256)))
    ScriptKernel(kernels.multiply.fn, copy).run(a, b, c, 512, 256, 1, 32, 1, 1, stream=0)


def test_an_integer_of_one_that_is_compiled_in_and_passed_leaves_the_grid_as_it_is():
    signatures = [op.signature for op in rehearse(_multiply_with_a_one_from_graph).trace.rank(0).operators()]
    (multiply,) = [signature for signature in signatures if signature.op == "triton::multiply"]
    assert multiply.work is not None
    assert multiply.work.grid == (32, 1, 1)
    assert multiply.work.flops == 2 * 512 * 256 * 32  # the inner side in whole tiles
