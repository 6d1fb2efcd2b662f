"""The cost model as a whole: what holds for every family on every device, who costs what, and what rests on what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.compute.operators import SAMPLES, attention, conv, mm, op, pointwise, spec

from sandtable.cluster import device_names, load_device
from sandtable.cluster.device import Device, Rates
from sandtable.engine.compute import CostModel, MeasuredRow, MeasuredTable
from sandtable.trace.kinds import Phase
from sandtable.trace.signature import Signature

A100 = load_device("a100-sxm4-80gb")
RECORDED = """
gemm: mm addmm bmm baddbmm linear _scaled_mm
attention: _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
 _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
 _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
convolution: convolution convolution_backward
copy: arange cat copy_ fill_ normal_ split_with_sizes_copy zero_
elementwise: _amp_update_scale_ add add_ bitwise_and bitwise_or clamp div div_ exp exp_ ge gelu gelu_backward log lt
 masked_fill_ mul mul_ native_dropout native_dropout_backward ne neg neg_ pow reciprocal relu sub threshold_backward
 where
indexing: _index_put_impl_ embedding embedding_dense_backward gather index_select nll_loss_backward nll_loss_forward
 scatter_add_
normalisation: _log_softmax _log_softmax_backward_data max_pool2d_with_indices max_pool2d_with_indices_backward
 native_batch_norm native_batch_norm_backward native_layer_norm native_layer_norm_backward _softmax
optimizer: _amp_foreach_non_finite_check_and_unscale_ _foreach_add _foreach_add_ _foreach_addcdiv_ _foreach_addcmul_
 _foreach_copy_ _foreach_div_ _foreach_lerp_ _foreach_mul_ _foreach_norm _foreach_sqrt _foreach_sub_ _fused_adamw_
reduction: amax linalg_vector_norm mean sum
none: view detach empty_strided
"""
"""Operators that the examples record, and a few more, by family."""


def recorded() -> list[tuple[str, str]]:
    lines = RECORDED.strip().replace("\n ", " ").splitlines()
    pairs = (line.split(": ") for line in lines)
    return [(family, f"aten::{name}") for family, names in pairs for name in names.split()]


def peak(device: Device, dtype: str) -> float:
    """Return the rate of the fastest unit for a type; convolutions may use tf32 for float32."""
    rates = (device.matmul, device.vector)
    if dtype == "float32":
        return max(max(rate.float32, rate.tf32) for rate in rates)
    return max(max(rate.float16, rate.bfloat16, rate.float32) for rate in rates)


@pytest.mark.parametrize(("family", "name"), recorded())
def test_every_operator_of_the_examples_has_its_family(family: str, name: str) -> None:
    assert CostModel(A100).family_of(Signature(name)).name == family


@pytest.mark.parametrize("name", device_names())
def test_nothing_is_faster_than_the_data_sheet_allows(name: str) -> None:
    device = load_device(name)
    model = CostModel(device)
    for signature in SAMPLES:
        cost = model.cost(signature)
        assert cost.work_ns >= cost.flops * 1e9 / peak(device, signature.inputs[0].dtype) * _causal(signature), (
            signature
        )
        if cost.family != "transfer":
            assert cost.work_ns >= cost.bytes * 1e9 / device.memory_bandwidth_bytes_per_s, signature
        assert cost.work_ns > 0
        assert cost.basis in ("fitted", "nominal")


def _causal(signature: Signature) -> float:
    """Return the least share of the counted FLOPs that a causal mask leaves."""
    return 0.5 if "attention" in signature.op else 1.0


@pytest.mark.parametrize("signature", SAMPLES, ids=lambda signature: signature.op)
def test_a_faster_device_is_never_slower(signature: Signature) -> None:
    usual = CostModel(A100).cost(signature).work_ns
    double = Rates(**{key: 2 * getattr(A100.matmul, key) for key in Rates.__slots__})
    wide = replace(A100, memory_bandwidth_bytes_per_s=2 * A100.memory_bandwidth_bytes_per_s)
    quick = replace(A100, matmul=double, measured_matmul=Rates())
    assert CostModel(wide).cost(signature).work_ns <= usual
    assert CostModel(quick).cost(signature).work_ns <= usual


@given(st.integers(1, 2**30), st.integers(1, 2**30))
def test_more_elements_never_take_less_time(a: int, b: int) -> None:
    model = CostModel(A100)
    small, large = sorted((a, b))
    assert model.cost(pointwise(small)).work_ns <= model.cost(pointwise(large)).work_ns


def test_a_small_kernel_takes_the_time_of_a_kernel() -> None:
    cost = CostModel(A100).cost(pointwise(1))
    assert cost.work_ns == pytest.approx(A100.efficiency.streaming.kernel_ns, rel=0.01)


def test_a_batch_norm_in_evaluation_reads_its_input_once() -> None:
    picture, channel = spec("float32", 16, 960, 65, 65), spec("float32", 960)
    inputs = [picture, channel, channel, channel, channel]
    training, evaluation = (
        CostModel(A100)
        .cost(op("native_batch_norm", inputs, [picture], f'["t","t","t","t","t",{flag},0.1,1e-05]'))
        .work_ns
        for flag in ("true", "false")
    )
    assert evaluation < 0.7 * training


def test_views_and_allocations_are_free() -> None:
    x = spec("float32", 1024, 1024)
    for name in ("view", "transpose", "empty_strided", "detach_"):
        assert CostModel(A100).cost(op(name, [x], [x])).work_ns == 0


def test_somebody_elses_kernel_is_bound_by_its_bytes_and_nominal() -> None:
    x = spec("float32", 10_000_000)
    cost = CostModel(A100).cost(op("mylib::swizzle", [x], [x]))
    assert (cost.family, cost.basis, cost.bytes) == ("unknown", "nominal", 80_000_000)
    assert cost.work_ns == pytest.approx(CostModel(A100).cost(pointwise(10_000_000)).work_ns)


def test_many_tensors_in_lists_are_several_kernels() -> None:
    """The same bytes in 1000 tensors need the kernels that 1000 tensors do not fit into one."""

    def scale(num_tensors: int) -> float:
        return CostModel(A100).cost(op("_foreach_mul_", [spec("float32", 1000)] * num_tensors, [], '["t","s"]')).work_ns

    kernel_ns = A100.efficiency.streaming.kernel_ns
    assert scale(110) < 2 * kernel_ns
    assert 10 * kernel_ns <= scale(1000) < 13 * kernel_ns


def test_copies_take_the_hosts_link() -> None:
    tensor = spec("float32", 25_000_000)
    copy = op("copy::host_to_device", [spec("float32", 25_000_000, device="cpu")], [tensor])
    back = op("copy::device_to_host", [tensor], [spec("float32", 25_000_000, device="cpu")])
    model = CostModel(A100, host_link_bytes_per_s=10e9)
    assert model.cost(copy).work_ns == pytest.approx(10e6, rel=0.01)
    assert model.cost(back).work_ns == pytest.approx(10e6, rel=0.01)
    assert CostModel(A100).cost(copy).work_ns == pytest.approx(1e8 / 24, rel=0.01)


def test_the_basis_says_what_was_fitted() -> None:
    model = CostModel(A100)
    assert model.cost(mm(1024, 1024, 1024)).basis == "fitted"
    assert model.cost(mm(1024, 1024, 1024, "float32")).basis == "nominal"
    assert model.cost(pointwise(100)).basis == "fitted"
    assert model.cost(attention()).basis == "fitted"
    assert model.cost(attention(kernel="efficient")).basis == "fitted"
    assert CostModel(load_device("p100-sxm2-16gb")).cost(conv()).basis == "fitted"
    assert CostModel(load_device("mi300x")).cost(mm(1024, 1024, 1024)).basis == "nominal"


def test_a_measured_time_outranks_the_formula() -> None:
    product = mm(256, 256, 256)
    table = MeasuredTable([MeasuredRow(signature=product, ns=12_345.0)])
    measured = CostModel(A100, table).cost(product)
    assert (measured.work_ns, measured.basis, measured.flops) == (12_345.0, "measured", 2 * 256**3)
    assert CostModel(A100, table).cost(mm(512, 256, 256)).basis == "fitted"


def test_only_what_follows_its_bytes_is_read_off_between_measured_sizes() -> None:
    rows = [MeasuredRow(signature=pointwise(size), ns=10.0 * size) for size in (100, 300)]
    rows += [MeasuredRow(signature=mm(size, size, size), ns=1.0) for size in (64, 512)]
    model = CostModel(A100, MeasuredTable(rows))
    assert model.cost(pointwise(200)).work_ns == pytest.approx(2000.0)
    assert model.cost(pointwise(200)).basis == "measured"
    assert model.cost(pointwise(400)).basis == "fitted"
    assert model.cost(mm(128, 128, 128)).basis == "fitted"


def test_the_host_pays_by_phase_and_by_kind() -> None:
    model, host = CostModel(A100), A100.efficiency.host
    signature = pointwise(10)
    assert model.host_ns(signature, Phase.FORWARD) == model.host_ns(signature, Phase.RECOMPUTE) == host.forward_ns
    assert model.host_ns(signature, Phase.BACKWARD) == host.backward_ns
    assert model.host_ns(op("mylib::swizzle", [], []), Phase.BACKWARD) == host.custom_ns
    step = op("_foreach_mul_", [spec("float32", 8)] * 100, [], '["t","s"]')
    assert model.host_ns(step, Phase.OPTIMIZER) == host.optimizer_ns + 100 * host.tensor_ns
    assert model.call_host_ns == host.collective_ns > host.forward_ns
    assert model.launch_latency_ns == host.launch_latency_ns


def test_a_cpu_runs_what_it_issues() -> None:
    assert not CostModel(A100).is_synchronous
    assert CostModel(replace(A100, vendor="cpu")).is_synchronous
