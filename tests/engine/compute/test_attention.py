"""Attention of packages: which kernel and pass an operator is, and what masks, windows and packing do to its time."""

import pytest
from tests.engine.compute.operators import op, spec

from sandtable.cluster import load_device
from sandtable.engine.compute import Conditions, CostModel
from sandtable.trace.signature import Signature

A100, H100 = (CostModel(load_device(name)) for name in ("a100-sxm4-80gb", "h100-sxm5-80gb"))


def forward(
    name: str = "flash_attn::_flash_attn_forward",
    *,
    batch: int = 2,
    seq: int = 4096,
    heads: int = 16,
    dim: int = 128,
    causal: bool = True,
    window: int = -1,
    dtype: str = "bfloat16",
) -> Signature:
    x = spec(dtype, batch, seq, heads, dim)
    flag = "true" if causal else "false"
    return op(name, [x, x, x], [x], f'["t","t","t","s","s",{flag},{window},0,"s",null,false]')


def packed(name: str, lengths: list[int], longest: int) -> Signature:
    x, offsets = spec("bfloat16", sum(lengths), 16, 128), spec("int32", len(lengths) + 1)
    args = f'["t","t","t","t","t",{longest},{longest},"s","s",true,-1,-1]'
    return op(name, [x, x, x, offsets, offsets], [x], args)


def backward(name: str = "flash_attn::_flash_attn_backward", *, fixed_order: bool = False) -> Signature:
    x = spec("bfloat16", 2, 4096, 16, 128)
    flag = "true" if fixed_order else "false"
    args = f'["t","t","t","t","t","t","t","t","t","s","s",true,-1,0,"s",null,{flag},null]'
    return op(name, [x, x, x, x, x], [x, x, x], args)


@pytest.mark.parametrize(
    "name",
    [
        *("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_backward", "flash_attn_3::bwd"),
        *("xformers_flash::flash_fwd", "xformers_flash3::flash_bwd", "transformer_engine::fused_attn_fwd"),
    ],
)
def test_operators_of_packages_are_attention(name: str) -> None:
    assert A100.family_of(Signature(name)).name == "attention"


def test_the_third_flash_attention_and_cudnn_are_faster_than_the_second_on_hopper() -> None:
    second, third, cudnn = (
        H100.cost(forward(name)).work_ns
        for name in ("flash_attn::_flash_attn_forward", "flash_attn_3::fwd", "transformer_engine::fused_attn_fwd")
    )
    assert third < 0.65 * second
    assert cudnn < 0.75 * second


@pytest.mark.parametrize("name", ["flash_attn::_flash_attn_forward", "flash_attn_3::fwd", "xformers_flash::flash_fwd"])
def test_a_mask_and_a_window_leave_out_keys(name: str) -> None:
    full, causal, window = (
        H100.cost(forward(name, seq=16384, causal=causal, window=window)).work_ns
        for causal, window in ((False, -1), (True, -1), (True, 1024))
    )
    assert causal == pytest.approx(full / 2, rel=0.08)
    assert window < causal / 3


def test_heads_are_padded_to_the_next_size_of_the_kernel() -> None:
    times = [H100.cost(forward("flash_attn_3::fwd", dim=dim)).work_ns for dim in (72, 96, 128)]
    assert times[0] == pytest.approx(times[1], rel=0.01)
    assert times[1] < times[2]


def test_equal_packed_sequences_cost_as_much_as_a_batch() -> None:
    batch = A100.cost(forward(batch=4, seq=2048)).work_ns
    rows = packed("flash_attn::_flash_attn_varlen_forward", [2048] * 4, 2048)
    assert A100.cost(rows).work_ns == pytest.approx(batch, rel=1e-6)


def test_many_short_sequences_cost_less_than_one_long_one() -> None:
    name = "flash_attn::_flash_attn_varlen_forward"
    short, long = (A100.cost(packed(name, lengths, max(lengths))).work_ns for lengths in ([512] * 16, [8192]))
    assert short < long / 4


def test_sums_in_a_fixed_order_are_slower_with_flash_attention() -> None:
    assert A100.cost(backward(fixed_order=True)).work_ns > 1.4 * A100.cost(backward()).work_ns


def test_float8_is_faster_but_not_twice_as_fast() -> None:
    name = "transformer_engine::fused_attn_fwd"
    usual, eight = (H100.cost(forward(name, seq=16384, dtype=dtype)).work_ns for dtype in ("bfloat16", "float8_e4m3fn"))
    assert usual / 2 < eight < usual / 1.3


def test_a_benchmark_runs_at_higher_clocks_than_a_long_run() -> None:
    burst = CostModel(load_device("h100-sxm5-80gb"), conditions=Conditions(burst=True))
    assert burst.cost(forward()).work_ns < 0.9 * H100.cost(forward()).work_ns


@pytest.mark.parametrize(
    ("model", "name", "causal", "seq", "tflops"),
    [
        ("a100-sxm4-80gb", "flash_attn::_flash_attn_forward", False, 16384, 210),
        ("h100-sxm5-80gb", "flash_attn::_flash_attn_forward", True, 16384, 335),
        ("h100-sxm5-80gb", "flash_attn_3::fwd", False, 16384, 648),
        ("h100-sxm5-80gb", "flash_attn_3::fwd", True, 2048, 521),
        ("h100-sxm5-80gb", "transformer_engine::fused_attn_fwd", True, 16384, 539),
    ],
)
def test_published_curves_are_met(model: str, name: str, causal: bool, seq: int, tflops: float) -> None:
    """16,384 tokens with 16 heads of 128 (Dao 2023, Shah et al. 2024): a causal mask counts half of the square.

    Software since then is up to 16 % faster than Shah's figures on long sequences; the shares are fitted to both.
    """
    cost = CostModel(load_device(model), conditions=Conditions(burst=True)).cost(
        forward(name, batch=16384 // seq, seq=seq, causal=causal)
    )
    assert cost.flops / (2 if causal else 1) / cost.work_ns / 1e3 == pytest.approx(tflops, rel=0.17)
