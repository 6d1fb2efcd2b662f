"""Compare predicted times of single kernels with published ones.

    python bench/kernels.py            # every set
    python bench/kernels.py --quick    # one row in eight
    python bench/kernels.py --set cuDNN --worst 5   # sets with this text in their name, and their worst rows

The rows are in validation/kernels, with their sources; bench/kernel_cases turns each into the operators that ran.
Prices are those of a benchmark (boost clocks; see `Conditions`), not of a long run. Of tables that the shares were
fitted to, the rows of one shape in three were used, chosen by the hash of the shape; errors are those of the other
rows. Next to them stands how far two published tables of the same shapes are apart. The last line is a JSON object:

sets     by set: rows (blind), fitted (rows used to fit); mean_pct, median_pct, worst_pct of |error|; bias_pct (median)
groups   the same over all rows of the sets that belong together; median and bias are medians over the sets
spread   by pair of tables: shapes, mean_pct and p95_pct of |ratio - 1|
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median

from kernel_cases.attention import attention_cases
from kernel_cases.case import Case, read
from kernel_cases.experts import expert_cases
from kernel_cases.products import cast_cases, layout_cases, product_cases, sustained_cases
from kernel_cases.rows import row_cases

from sandtable.cluster import load_device
from sandtable.cluster.device import Rates
from sandtable.engine.compute import Conditions, CostModel

GROUPS = {
    "FlashAttention-2 on A100": ("FlashAttention-2 A100",),
    "FlashAttention-2 on H100": ("FlashAttention-2 H100",),
    "FlashAttention-3 on H100 and H200": ("FlashAttention-3 H",),
    "cuDNN attention on A100": ("cuDNN A100",),
    "cuDNN attention on H100 and H200": ("cuDNN H", "cuDNN fp8 H"),
    "memory-efficient attention on A100": ("memory-efficient A100",),
    "fp8 products with their casts": ("products H100 fp8", "products H200 fp8"),
    "casts to fp8": ("casts to fp8 H",),
    "Liger norms": ("liger norms",),
    "cuDNN norms": ("cudnn norms H",),
    "torch norms": ("torch norms H",),
    "other Liger kernels": ("liger ",),
    "grouped products of experts, H100 and H200": ("experts H",),
    "grouped products on A100": ("products A100 grouped",),
    "bf16 products on A100": ("products A100",),
    "bf16 products on H100 and H200": ("products H100 bf16", "products H200 bf16"),
    "FlashAttention-2 on B200": ("FlashAttention-2 B200",),
    "FlashAttention-4 on B200": ("FlashAttention-4 B200",),
    "cuDNN attention on GB200": ("cuDNN GB200",),
    "cuDNN attention on GB300": ("cuDNN GB300",),
    "cuDNN attention in fp8 on GB200": ("cuDNN fp8 GB200",),
    "cuDNN attention in fp8 on GB300": ("cuDNN fp8 GB300",),
    "cuDNN norms on GB200 and GB300": ("cudnn norms GB200", "cudnn norms B300"),
    "torch norms on GB200 and GB300": ("torch norms GB200", "torch norms B300"),
    "bf16 products on B200, B300 and GB200": ("products B200 bf16", "products B300 bf16", "products GB200 bf16"),
    "fp8 products with their casts, B200": ("products B200 fp8",),
    "casts to fp8, B200": ("casts to fp8 B200",),
    "grouped products of experts, B200": ("experts B200",),
}
"""Groups by the beginnings of the names of their sets; a set belongs to the first group that names it."""


WHOLE_GROUPS = {
    "grouped products of experts, the tuner's misses too": ("experts H",),
}
"""The same for groups from which rows were left out, with all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A case and the error of its price, as a share of the published time."""

    case: Case
    error: float


def main() -> None:
    """Print one line per set, the groups and the spread between tables, then everything as JSON."""
    args = parse_arguments()
    by_set: dict[str, list[Scored]] = defaultdict(list)
    for case in all_cases(every=8 if args.quick else 1):
        if args.set in case.set_name:
            by_set[case.set_name].append(Scored(case=case, error=price_us(case) / case.published_us - 1))
    sets = {name: summary(by_set[name]) for name in sorted(by_set)}
    for name, figures in sets.items():
        print_line(name, figures)
        for scored in sorted(by_set[name], key=lambda scored: -abs(scored.error))[: args.worst]:
            print(f"      {scored.case.table} {scored.case.shape} {scored.case.published_us} us {scored.error:+.1%}")
    print()
    groups = {name: members for name in GROUPS if (members := [item for item in sets if group_of(item) == name])}
    groups |= {name: [item for item in sets if item.startswith(starts)] for name, starts in WHOLE_GROUPS.items()}
    grouped = {name: group_summary([sets[item] for item in members]) for name, members in groups.items() if members}
    for name, figures in grouped.items():
        print_line(name, figures)
    spread = dict(spreads())
    print()
    for name, pair in spread.items():
        print(f"{name:58} {pair['shapes']:5} shapes, mean {pair['mean_pct']:5.1f} %, p95 {pair['p95_pct']:5.1f} %")
    print(json.dumps({"sets": sets, "groups": grouped, "spread": spread}))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one row in eight")
    parser.add_argument("--set", default="", help="only sets whose name contains this text")
    parser.add_argument("--worst", type=int, default=0, help="print as many of the worst rows of each set")
    return parser.parse_args()


def all_cases(*, every: int) -> Iterator[Case]:
    """Yield one in `every` cases of all tables."""
    sources = (attention_cases, product_cases, layout_cases, sustained_cases, cast_cases, row_cases, expert_cases)
    for source in sources:
        for place, case in enumerate(source()):
            if place % every == 0:
                yield case


def price_us(case: Case) -> float:
    """Return the predicted time, with what the measurement adds."""
    model = cost_model(case.device, case.conditions, case.num_sms)
    return case.harness_us + sum(model.cost(signature).work_ns for signature in case.operators) / 1e3


@cache
def cost_model(device: str, conditions: Conditions, num_sms: int | None) -> CostModel:
    """Return the model of a device in the catalogue, or of a part of it."""
    whole = load_device(device)
    part = replace(whole, num_sms=num_sms, matmul=_scaled(whole.matmul, num_sms / whole.num_sms)) if num_sms else whole
    return CostModel(part, conditions=conditions)


def _scaled(rates: Rates, share: float) -> Rates:
    return Rates(**{name: round(share * getattr(rates, name)) for name in Rates.__slots__})


def summary(scored: list[Scored]) -> dict[str, float]:
    """Return the figures of one set: errors of its blind rows, or of all if none are blind."""
    blind = [item for item in scored if not item.case.is_fitted] or scored
    errors = [abs(item.error) for item in blind]
    return {
        "rows": len(blind),
        "fitted": sum(item.case.is_fitted for item in scored),
        "mean_pct": round(100 * fmean(errors), 1),
        "median_pct": round(100 * median(errors), 1),
        "worst_pct": round(100 * max(errors), 1),
        "bias_pct": round(100 * median(item.error for item in blind), 1),
    }


def group_of(set_name: str) -> str | None:
    """Return the group of a set; rows on which the published tuner missed belong to none."""
    if set_name.endswith("tuner missed"):
        return None
    return next((name for name, starts in GROUPS.items() if set_name.startswith(starts)), None)


def group_summary(members: list[dict[str, float]]) -> dict[str, float]:
    """Return the figures of a group over all rows of its sets."""
    rows = sum(figures["rows"] for figures in members)
    return {
        "rows": rows,
        "fitted": sum(figures["fitted"] for figures in members),
        "mean_pct": round(sum(figures["mean_pct"] * figures["rows"] for figures in members) / rows, 1),
        "median_pct": round(median(figures["median_pct"] for figures in members), 1),
        "worst_pct": max(figures["worst_pct"] for figures in members),
        "bias_pct": round(median(figures["bias_pct"] for figures in members), 1),
    }


def print_line(name: str, figures: dict[str, float]) -> None:
    """Print the figures of a set or a group."""
    print(
        f"{name:58} {figures['rows']:5} blind {figures['fitted']:4} fitted  mean {figures['mean_pct']:5.1f} %  median "
        f"{figures['median_pct']:5.1f} %  worst {figures['worst_pct']:5.1f} %  bias {figures['bias_pct']:+5.1f} %"
    )


def spreads() -> Iterator[tuple[str, dict[str, float]]]:
    """Yield how far two published tables of the same shapes are apart."""
    for first, second in (
        ("a100_sxm_bf16", "a100_sxm_bf16_vllm014"),
        ("h100_sxm_bf16", "h100_sxm_bf16_trtllm"),
        ("h100_sxm_bf16", "h100_sxm_bf16_sglang"),
        ("h100_sxm_bf16", "h200_sxm_bf16"),
        ("h100_sxm_fp8", "h200_sxm_fp8"),
        ("b200_sxm_bf16", "b300_sxm_bf16"),
        ("b200_sxm_bf16", "gb200_bf16"),
    ):
        rows = [row for row in read("products") if row[first] and row[second]]
        yield f"products {first} / {second}", _spread(float(row[first]) / float(row[second]) for row in rows)
    yield (
        "casts to fp8 H100 / H200",
        _spread(float(r["h100_cast_us"]) / float(r["h200_cast_us"]) for r in read("casts")),
    )
    for dtype in ("bfloat16", "fp8", "fp8_block"):
        pairs = [(float(r["h100_us"]), float(r["h200_us"])) for r in read("experts") if r["dtype"] == dtype]
        yield f"experts {dtype} H100 / H200", _spread(first / second for first, second in pairs)
    yield "experts H100 / H200, the tuner's misses", _spread(_missed_ratios())
    yield from _attention_spreads()


def _missed_ratios() -> Iterator[float]:
    times: dict[str, dict[str, float]] = defaultdict(dict)
    for case in expert_cases():
        if case.set_name.endswith("tuner missed"):
            times[case.shape][case.table] = case.published_us
    return (by_gpu["h100"] / by_gpu["h200"] for by_gpu in times.values())


def _attention_spreads() -> Iterator[tuple[str, dict[str, float]]]:
    times: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for row in read("attention"):
        shape = ",".join(row[key] for key in list(row)[4:-1]) + row["dtype"]
        times[row["table"], row["device"].split("-")[0], row["kernel"]][shape] = float(row["us"])
    for first, second in (
        (("serving_fa3", "h100", "flash3"), ("serving_fa3", "h200", "flash3")),
        (("encoder_fa3", "h100", "flash3"), ("encoder_fa3", "h200", "flash3")),
        (("cudnn_frontend", "h200", "cudnn"), ("cudnn_frontend", "h200", "flash4")),
        (("serving_fa2", "a100", "flash"), ("serving_trtllm", "a100", "trtllm")),
    ):
        shared = times[first].keys() & times[second].keys()
        name = f"attention {' '.join(first)} / {' '.join(second)}"
        yield name, _spread(times[first][shape] / times[second][shape] for shape in shared)


def _spread(ratios: Iterable[float]) -> dict[str, float]:
    distances = sorted(abs(ratio - 1) for ratio in ratios)
    return {
        "shapes": len(distances),
        "mean_pct": round(100 * fmean(distances), 1),
        "p95_pct": round(100 * distances[int(0.95 * (len(distances) - 1))], 1),
    }


if __name__ == "__main__":
    main()
