"""Experts: the forward pass of a fused mixture of experts (TensorRT-LLM), balanced and skewed.

It sorts the tokens by expert, runs two grouped products with a gated activation between them, and adds up each token's
experts. The skewed load follows the collector of aiconfigurator: shares of a power law, the busiest rank measured.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from kernel_cases.case import BURST, Case, read, tensor
from kernel_cases.products import block_cast
from sandtable.trace.signature import Signature, TensorSpec
from sandtable.trace.work import Work

__all__ = ["expert_cases", "expert_operators"]

_GPUS = {"h100": "h100-sxm5-80gb", "h200": "h200-sxm-141gb", "b200": "b200-sxm-180gb"}
_DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "fp8_block": "float8_e4m3fn"}
_ALPHA = 1.2
_DRAWS = 5
_LARGEST_OVER_H200, _LARGEST_OVER_B200 = 1.5, 3.0
_SMALLEST_OVER_H200 = 1 / 1.2
_SMALLEST_GROWTH = 0.95
"""Bounds of the published times: H200 has 1.43 times the memory bandwidth of H100 and the same peak, B200 has 2.4 and
2.3 times as much, and more tokens cannot take less time. Rows outside are those on which the tuner missed."""

_FIXED_US = {"bfloat16": 16.0, "fp8": 23.5, "fp8_block": 2.6}
"""Routing, counting and prefix sums, which the three back ends do in more or fewer short kernels (fitted)."""


def expert_cases() -> Iterator[Case]:
    """Yield the rows by GPU, type and load."""
    rows = list(read("experts"))
    curves: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        curves[_curve(row)].append(row)
    for row in rows:
        agrees = _is_possible(row, curves[_curve(row)])
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
                harness_us=_FIXED_US[row["dtype"]],
                may_fit=gpu == "h100" and agrees,
            )


def _curve(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(value for key, value in row.items() if key != "tokens" and not key.endswith("_us"))


def _is_possible(row: dict[str, str], curve: list[dict[str, str]]) -> bool:
    h100, h200, b200 = (float(row[f"{gpu}_us"]) for gpu in ("h100", "h200", "b200"))
    if not _SMALLEST_OVER_H200 <= h100 / h200 <= _LARGEST_OVER_H200 or h100 / b200 > _LARGEST_OVER_B200:
        return False
    larger = [other for other in curve if int(other["tokens"]) > int(row["tokens"])]
    return all(
        float(other[column]) >= _SMALLEST_GROWTH * float(row[column])
        for other in larger
        for column in ("h100_us", "h200_us")
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
    gate = tensor("bfloat16", num_rows, width)
    is_block = row["dtype"] == "fp8_block"
    return (
        Signature("experts::sort_rows", (y,), (y,), "[]", Work(family="indexing")),
        *casts(y, x, is_block=is_block),
        grouped(counts, gates * width, hidden, dtype, is_block=is_block),
        Signature("aten::silu", (wide,), (gate,), "[]"),
        *casts(gate, inner, is_block=is_block),
        grouped(counts, hidden, width, dtype, is_block=is_block),
        Signature("experts::add_up", (y,), (tensor("bfloat16", tokens, hidden),), "[]", Work(family="indexing")),
    )


def casts(x: TensorSpec, y: TensorSpec, *, is_block: bool) -> Iterator[Signature]:
    """Yield the quantisation of what the next product reads, where it is in fp8."""
    if is_block:
        yield block_cast(*x.shape)
    elif x.dtype != y.dtype:
        yield Signature("aten::_to_copy", (x,), (y,), "[]")


def grouped(counts: tuple[int, ...], n: int, k: int, dtype: str, *, is_block: bool) -> Signature:
    """Return the product of each expert's rows with its own matrix, in one launch."""
    busy = [count for count in counts if count]
    inputs = (tensor(dtype, sum(busy), k), tensor(dtype, len(busy), k, n))
    if is_block:
        inputs += (tensor("float32", sum(busy), -(-k // 128)), tensor("float32", len(busy), -(-n // 128), -(-k // 128)))
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
