"""Prices of single kernels stay as close to published times as docs/costs.md says."""

import json
from pathlib import Path

from tests.bench.benchmarks import run

KERNELS = Path(__file__).parents[2] / "bench" / "kernels.py"
LIMIT_PCT = 10.0
GROUPS = (
    "FlashAttention-2 on A100",
    "FlashAttention-2 on H100",
    "FlashAttention-3 on H100 and H200",
    "cuDNN attention on A100",
    "cuDNN attention on H100 and H200",
    "fp8 products with their casts",
    "casts to fp8",
    "Liger norms",
    "cuDNN norms",
    "grouped products of experts, H100 and H200",
    "grouped products on A100",
)


def test_published_kernels_are_met_within_a_tenth() -> None:
    groups = json.loads(run(KERNELS).splitlines()[-1])["groups"]
    missed = {name: groups[name]["mean_pct"] for name in GROUPS if groups[name]["mean_pct"] > LIMIT_PCT}
    assert not missed
