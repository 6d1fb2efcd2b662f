"""Experts: the forward pass of a fused mixture of experts (TensorRT-LLM), balanced and skewed.

It sorts the tokens by expert, runs two grouped products with a gated activation between them, and adds up each token's
experts. The skewed load follows the collector of aiconfigurator: shares of a power law, the busiest rank measured.
"""

import random
from collections.abc import Iterator
from functools import cache

from kernel_cases.case import BURST, Case, read, tensor
from sandtable.trace.signature import Signature
from sandtable.trace.work import Work

__all__ = ["expert_cases", "expert_operators"]

_GPUS = {"h100": "h100-sxm5-80gb", "h200": "h200-sxm-141gb", "b200": "b200-sxm-180gb"}
_DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "fp8_block": "float8_e4m3fn"}
_ALPHA = 1.2
_DRAWS = 5
_DISAGREEMENT = 1.5
"""Rows whose H100 and H200 times differ by more than this factor are left out: the tuner missed on one of them."""

_FIXED_US = 20.0
"""Routing, counting and prefix sums: about ten short kernels."""


def expert_cases() -> Iterator[Case]:
    """Yield the rows by GPU, type and load."""
    for row in read("experts"):
        times = [float(row[f"{gpu}_us"]) for gpu in ("h100", "h200")]
        agrees = max(times) <= _DISAGREEMENT * min(times)
        for gpu, device in _GPUS.items():
            load = "balanced" if row["load"] == "balanced" else "skewed"
            yield Case(
                set_name=f"experts {gpu.upper()} {row['dtype']} {load}" + ("" if agrees else ", tuner missed"),
                table=gpu,
                device=device,
                shape=",".join(value for key, value in row.items() if not key.endswith("_us")),
                published_us=float(row[f"{gpu}_us"]),
                operators=expert_operators(row),
                conditions=BURST,
                harness_us=_FIXED_US,
                may_fit=gpu == "h100" and agrees,
            )


def expert_operators(row: dict[str, str]) -> tuple[Signature, ...]:
    """Return what one rank runs."""
    tokens, hidden, inter, topk = (int(row[key]) for key in ("tokens", "hidden", "inter", "topk"))
    width = inter // int(row["tp"])
    counts = rows_by_expert(tokens, topk, int(row["experts"]), int(row["ep"]), row["load"])
    dtype = _DTYPES[row["dtype"]]
    num_rows = sum(counts)
    gates = 1 if _has_no_gate(topk, hidden) else 2
    x, y = tensor(dtype, num_rows, hidden), tensor("bfloat16", num_rows, hidden)
    inner, wide = tensor(dtype, num_rows, width), tensor("bfloat16", num_rows, gates * width)
    return (
        Signature("aten::copy_", (x, tensor("bfloat16", num_rows, hidden)), (x,), "[]"),
        grouped(counts, gates * width, hidden, dtype),
        Signature("aten::silu", (wide,), (inner,), "[]"),
        grouped(counts, hidden, width, dtype),
        Signature("aten::silu", (y,), (tensor("bfloat16", tokens, hidden),), "[]"),
    )


def grouped(counts: tuple[int, ...], n: int, k: int, dtype: str) -> Signature:
    """Return the product of each expert's rows with its own matrix, in one launch."""
    busy = [count for count in counts if count]
    inputs = (tensor(dtype, sum(busy), k), tensor(dtype, len(busy), k, n))
    work = Work(family="gemm", products=tuple((1, count, n, k) for count in busy), dtype=dtype)
    return Signature("grouped::gemm", inputs, (tensor("bfloat16", sum(busy), n),), "[]", work)


@cache
def rows_by_expert(tokens: int, topk: int, experts: int, ep: int, load: str) -> tuple[int, ...]:
    """Return the rows of each expert of the busiest rank: equal, or the mean of a few draws by rank of size."""
    local = experts // ep
    if load == "balanced":
        return (max(1, round(tokens * topk / experts)),) * local
    draws = [_skewed(tokens, topk, experts, local, random.Random(seed)) for seed in range(_DRAWS)]
    return tuple(round(sum(column) / _DRAWS) for column in zip(*draws, strict=True))


def _skewed(tokens: int, topk: int, experts: int, local: int, source: random.Random) -> list[float]:
    low, high = (1.0, tokens * 0.8) if tokens * topk > experts else (0.01, 2.0)
    power = 1 - _ALPHA
    shares = [((high**power - low**power) * source.random() + low**power) ** (1 / power) for _ in range(experts)]
    counts = [share * tokens * topk / sum(shares) for share in shares]
    for _ in range(8):  # an expert gets a token once at most: the rest goes to the others
        excess = sum(max(0.0, count - tokens) for count in counts)
        counts = [min(float(tokens), count) for count in counts]
        free = [place for place, count in enumerate(counts) if count < tokens]
        for place in free:
            counts[place] += excess / len(free)
    ranks = [counts[start : start + local] for start in range(0, experts, local)]
    return sorted(max(ranks, key=sum), reverse=True)


def _has_no_gate(topk: int, hidden: int) -> bool:
    """Return whether it is one of the two Nemotron 3 models of the table, whose experts have no gate."""
    return topk == 22 or hidden == 2688
