"""Matrix products, attention and convolutions: growth, quantisation, and the effects that shapes are known for."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.compute.operators import attention, attention_backward, bmm, conv, conv_backward, mm, op, spec

from sandtable.cluster import load_device
from sandtable.engine.compute import CostModel
from sandtable.trace.signature import Signature, TensorSpec

A100 = CostModel(load_device("a100-sxm4-80gb"))
V100 = CostModel(load_device("v100-sxm2-32gb"))
P100 = CostModel(load_device("p100-sxm2-16gb"))

eighths = st.integers(1, 512).map(lambda count: 8 * count)


def tflops(model: CostModel, signature: Signature) -> float:
    cost = model.cost(signature)
    return cost.flops / cost.work_ns / 1e3


@given(
    eighths, eighths, eighths, st.sampled_from([8, 64, 1000]), st.integers(0, 2), st.sampled_from([A100, V100, P100])
)
@settings(max_examples=200)
def test_a_larger_product_never_takes_less_time(m: int, n: int, k: int, more: int, dim: int, model: CostModel) -> None:
    sizes = [m, n, k]
    sizes[dim] += more
    larger = mm(sizes[0], sizes[1], sizes[2], "float16")
    assert model.cost(mm(m, n, k, "float16")).work_ns <= model.cost(larger).work_ns


def test_tiles_of_float8_products_come_in_pairs() -> None:
    """With a tile per multiprocessor in each row of tiles, 257 rows take four turns, not three, as 512 rows do."""
    h100 = CostModel(load_device("h100-sxm5-80gb"))
    times = [h100.cost(mm(rows, 132 * 128, 16384, "float8_e4m3fn")).work_ns for rows in (257, 512)]
    assert times[0] == pytest.approx(times[1], rel=0.01)


@given(st.integers(1, 64), st.integers(1, 64))
def test_more_products_never_take_less_time(a: int, b: int) -> None:
    small, large = sorted((a, b))
    assert A100.cost(bmm(small, 256, 256, 64)).work_ns <= A100.cost(bmm(large, 256, 256, 64)).work_ns


def test_large_products_reach_what_such_devices_are_known_to_reach() -> None:
    assert 220 < tflops(A100, mm(8192, 8192, 8192)) < 271
    assert 85 < tflops(V100, mm(8192, 8192, 8192, "float16")) < 112
    assert 8 < tflops(P100, mm(8192, 8192, 8192, "float32")) < 10


def test_one_tile_more_than_fits_costs_another_wave() -> None:
    """108 multiprocessors lay 108 tiles of 128 x 256 at once; with thick tiles no smaller size is better."""
    full = A100.cost(mm(128 * 9, 256 * 12, 16384)).work_ns
    over = A100.cost(mm(128 * 9, 256 * 12 + 8, 16384)).work_ns
    assert over > 1.05 * full


def test_few_tiles_with_much_depth_split_the_depth() -> None:
    """Without splitting, four tiles of 128 x 128 would keep 104 of 108 multiprocessors idle."""
    assert tflops(A100, mm(256, 256, 65536)) > 10 * 240 * 4 / 108


def test_products_of_bfloat16_and_float32_run_on_different_units() -> None:
    assert tflops(A100, mm(4096, 4096, 4096, "float32")) < 19.5
    assert tflops(A100, mm(4096, 4096, 4096)) > 10 * tflops(A100, mm(4096, 4096, 4096, "float32"))
    assert tflops(V100, mm(4096, 4096, 4096)) < 16  # V100 has no matrix units for bfloat16


def test_an_odd_vocabulary_is_slow() -> None:
    odd, padded = A100.cost(mm(8192, 50257, 1024)).work_ns, A100.cost(mm(8192, 50304, 1024)).work_ns
    assert odd > 1.5 * padded


def test_transposed_operands_are_judged_by_their_pitch() -> None:
    """The weight of a layer with 50257 outputs, seen transposed: rows of 1024 numbers, which are aligned."""
    x, grad = spec("bfloat16", 8192, 1024), spec("bfloat16", 8192, 50304)
    turned = TensorSpec("bfloat16", (1024, 50304), (1, 1024), "cuda")
    straight = TensorSpec("bfloat16", (1024, 50304), (50304, 1), "cuda")
    costs = {A100.cost(op("mm", [x, weight], [grad])).work_ns for weight in (turned, straight)}
    assert len(costs) == 1


def test_a_thin_product_is_bound_by_memory() -> None:
    cost = A100.cost(mm(8, 8192, 8192))
    assert cost.work_ns == pytest.approx(cost.bytes / 2039 / 0.82, rel=0.2)


def test_an_uninitialised_addend_is_not_read() -> None:
    a, b, c = spec("float16", 64, 1024, 64), spec("float16", 64, 64, 1024), spec("float16", 64, 1024, 1024)
    assert A100.cost(op("baddbmm", [c, a, b], [c])).bytes == A100.cost(op("bmm", [a, b], [c])).bytes


def test_groups_share_out_the_rows() -> None:
    grouped = op("_grouped_mm", [spec("bfloat16", 8192, 1024), spec("bfloat16", 8, 1024, 2048)], [])
    flat = mm(8192, 2048, 1024)
    assert A100.cost(grouped).flops == A100.cost(flat).flops
    assert A100.cost(grouped).work_ns == pytest.approx(A100.cost(flat).work_ns, rel=0.3)


@given(st.integers(1, 8192), st.integers(1, 8192), st.booleans(), st.sampled_from([64, 128]))
def test_longer_sequences_never_take_less_time(a: int, b: int, causal: bool, dim: int) -> None:
    small, large = sorted((a, b))
    times = [A100.cost(attention(seq=seq, causal=causal, dim=dim)).work_ns for seq in (small, large)]
    assert times[0] <= times[1]


def test_a_causal_mask_halves_long_attention() -> None:
    full, half = (A100.cost(attention(seq=16384, causal=causal)) for causal in (False, True))
    assert full.flops == half.flops
    assert half.work_ns == pytest.approx(full.work_ns / 2, rel=0.05)


def test_attention_backward_takes_two_to_four_times_forward() -> None:
    assert 2 < A100.cost(attention_backward()).work_ns / A100.cost(attention()).work_ns < 4


def test_small_heads_and_the_memory_efficient_kernel_are_slower() -> None:
    usual = A100.cost(attention(heads=16, dim=128)).work_ns
    assert A100.cost(attention(heads=32, dim=64)).work_ns > usual
    assert A100.cost(attention(kernel="efficient")).work_ns > usual


@pytest.mark.parametrize(
    ("name", "args", "causal"),
    [
        ("_scaled_dot_product_efficient_attention", '["t","t","t",null,false,0.1,false,null]', False),
        ("_scaled_dot_product_cudnn_attention", '["t","t","t",null,true,0,true,false,null]', True),
        ("_scaled_dot_product_cudnn_attention", '["t","t","t",null,true,0,false,true,null]', False),
        ("_efficient_attention_forward", '["t","t","t",null,null,null,4096,4096,0,1,true]', True),
        ("_efficient_attention_forward", '["t","t","t",null,null,null,4096,4096,0,0,true]', False),
        ("_flash_attention_forward", '["t","t","t",null,null,4096,4096,0,true,false]', True),
    ],
)
def test_the_mask_is_found_in_every_kernels_arguments(name: str, args: str, causal: bool) -> None:
    is_low_level = not name.startswith("_scaled")
    head = spec("bfloat16", 2, 4096, 16, 128) if is_low_level else spec("bfloat16", 2, 16, 4096, 128)
    told = A100.cost(op(name, [head, head, head], [head], args)).work_ns
    plain = A100.cost(op(name, [head, head, head], [head], '["t","t","t",0,false]')).work_ns
    assert told == (pytest.approx(plain * 0.55, rel=0.1) if causal else plain)


def test_gradients_that_are_not_wanted_are_not_paid_for() -> None:
    forward = conv(window=1)
    both, one = (
        A100.cost(conv_backward(forward, mask)).work_ns for mask in ("[true,true,false]", "[false,true,false]")
    )
    assert one < 0.8 * both


def test_fast_algorithms_help_small_filters_on_ordinary_lanes() -> None:
    """VGG-16 on a P100 ran at 14 TFLOP/s, by its multiplications, of a peak of 10.6."""
    assert tflops(P100, conv(batch=64, channels=256, filters=256)) > 10.6
    assert tflops(P100, conv(batch=64, channels=256, filters=256, window=5)) < 10.6


def test_channels_last_suits_matrix_units() -> None:
    plain = conv(batch=64, channels=256, filters=256, dtype="float16")
    x = plain.inputs[0]
    last = TensorSpec(x.dtype, x.shape, (x.shape[1] * 56 * 56, 1, x.shape[1] * 56, x.shape[1]), "cuda")
    turned = op("convolution", [last, plain.inputs[1]], list(plain.outputs), plain.args)
    assert A100.cost(turned).work_ns < A100.cost(plain).work_ns


def _depthwise(*, batch: int, channels: int, size: int, window: int) -> Signature:
    x, weight = spec("float32", batch, channels, size, size), spec("float32", channels, 1, window, window)
    padding = window // 2
    args = f'["t","t",null,[1,1],[{padding},{padding}],[1,1],false,[0,0],{channels}]'
    return op("convolution", [x, weight], [x], args)


@given(st.integers(1, 15).map(lambda half: 2 * half + 1), st.integers(8, 64))
def test_depthwise_convolutions_add_their_multiplications_to_their_bytes(window: int, size: int) -> None:
    """At a ninth of the lanes' 19.5 TFLOP/s, and 0.82 of 2,039 GB/s; a tile of a product would be nearly empty."""
    layer = A100.cost(_depthwise(batch=64, channels=384, size=size, window=window))
    num_outputs = 64 * 384 * size**2
    expected_s = num_outputs * (2 * window**2 / (0.11 * 19.5e12) + 8 / (0.82 * 2039e9)) + 2e-6
    assert layer.work_ns / 1e9 == pytest.approx(expected_s, rel=0.01)


def test_gradients_of_depthwise_convolutions_are_as_much_work_each() -> None:
    forward = _depthwise(batch=64, channels=384, size=64, window=13)
    one, both = (A100.cost(signature).work_ns for signature in (forward, conv_backward(forward)))
    assert both == pytest.approx(2 * one, rel=0.05)


@given(st.integers(1, 128), st.integers(1, 128), st.sampled_from([1, 3, 7]))
def test_more_pictures_never_take_less_time(a: int, b: int, window: int) -> None:
    small, large = sorted((a, b))
    assert P100.cost(conv(batch=small, window=window)).work_ns <= P100.cost(conv(batch=large, window=window)).work_ns


def test_float32_products_run_on_matrix_units_where_the_script_allows_tf32():
    plain = mm(4096, 4096, 4096, "float32")
    allowed = replace(plain, tf32=True)
    assert Signature.parse(allowed.text) == allowed
    assert A100.cost(allowed).work_ns < A100.cost(plain).work_ns / 3
