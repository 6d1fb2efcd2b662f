"""Kernels whose record carries their work: grouped products, and programs that take one row after the other."""

import pytest
from tests.engine.compute.operators import mm, op, pointwise, spec

from sandtable.cluster import load_device
from sandtable.engine.compute import Conditions, CostModel
from sandtable.trace.signature import Signature
from sandtable.trace.work import Work

H100 = CostModel(load_device("h100-sxm5-80gb"))


def grouped(
    counts: list[int], n: int = 4096, k: int = 4096, dtype: str = "bfloat16", *, scales: bool = False
) -> Signature:
    tensors = [spec(dtype, sum(counts), k), spec(dtype, len(counts), k, n)]
    tensors += [spec("float32", sum(counts), k // 128)] if scales else []
    work = Work(family="gemm", products=tuple((1, count, n, k) for count in counts), dtype=dtype)
    return Signature("grouped::gemm", tuple(tensors), (spec("bfloat16", sum(counts), n),), "[]", work)


def test_groups_of_many_rows_are_slower_than_one_product_but_not_much() -> None:
    plain = H100.cost(mm(16384, 4096, 4096)).work_ns
    assert plain < H100.cost(grouped([2048] * 8)).work_ns < 1.5 * plain


def test_groups_fill_whole_tiles() -> None:
    uneven, even = (H100.cost(grouped(counts)).work_ns for counts in ([129] * 32, [128] * 32))
    assert uneven > 1.2 * even


def test_skewed_groups_cost_as_much_as_balanced_ones_of_the_same_total() -> None:
    """Rows of one rank are what counts: skew between its experts matters only through their last tiles."""
    skewed, even = (H100.cost(grouped(counts)).work_ns for counts in ([7168] + [1024] * 9, [1638] * 9 + [1642]))
    assert skewed == pytest.approx(even, rel=0.1)


def test_few_rows_are_limited_by_the_weights_of_all_groups() -> None:
    cost = H100.cost(grouped([4] * 64))
    weights_ns = 64 * 4096 * 4096 * 2 / 3350
    assert cost.work_ns == pytest.approx(weights_ns, rel=0.25)


def test_a_scale_for_each_128_numbers_slows_grouped_float8() -> None:
    plain, scaled = (H100.cost(grouped([2048] * 8, dtype="float8_e4m3fn", scales=scales)) for scales in (False, True))
    assert scaled.work_ns > 1.3 * plain.work_ns
    assert plain.work_ns < H100.cost(grouped([2048] * 8)).work_ns


def test_torchs_grouped_product_is_one_too() -> None:
    x, weight, ends = spec("bfloat16", 16384, 4096), spec("bfloat16", 8, 4096, 4096), spec("int32", 8)
    torchs = op("_grouped_mm", [x, weight, ends], [spec("bfloat16", 16384, 4096)])
    assert H100.cost(torchs).work_ns == pytest.approx(H100.cost(grouped([2048] * 8)).work_ns, rel=0.02)


def test_rows_one_after_the_other_limit_a_kernel() -> None:
    x = spec("bfloat16", 4096, 1024)
    free, walked = (
        H100.cost(Signature("liger::norm_backward", (x, x), (x,), "[]", work)).work_ns
        for work in (Work(family="normalisation"), Work(family="normalisation", rows=4096, row_ns=5000.0))
    )
    assert walked == pytest.approx(32 * 5000, rel=0.1)  # 4,096 rows on 132 multiprocessors
    assert free < walked / 5


def test_cached_tensors_are_moved_faster_if_they_fit() -> None:
    cached = CostModel(load_device("h100-sxm5-80gb"), conditions=Conditions(cached=True))
    small, large = pointwise(2_000_000), pointwise(50_000_000)
    assert cached.cost(small).work_ns < 0.85 * H100.cost(small).work_ns
    assert cached.cost(large).work_ns == H100.cost(large).work_ns


def test_products_in_float8_gain_less_from_a_burst_than_those_in_16_bits() -> None:
    burst = CostModel(load_device("h100-sxm5-80gb"), conditions=Conditions(burst=True))
    gains = [
        H100.cost(product).work_ns / burst.cost(product).work_ns
        for product in (mm(8192, 8192, 8192), mm(8192, 8192, 8192, "float8_e4m3fn"))
    ]
    assert gains[0] > gains[1] > 1
