"""Compare the predicted times of collectives with measured curves.

    python bench/collectives.py
    python bench/collectives.py --quick
    python bench/collectives.py --rows

Each curve of validation/rows/collectives.toml is predicted from 1 MB up on its machine of the catalogue, with an idle
network, and compared with the measured time or bus bandwidth. Constants were fitted to `calibrated` curves; the
catalogue's link efficiency comes from the plateau of `in_catalogue` curves. The last line is a JSON object:

curves                  by id: n, mean_abs_pct, max_abs_pct, calibrated, in_catalogue
predicted_mean_abs_pct  mean over all rows of curves not calibrated on
unseen_mean_abs_pct     the same without curves whose plateau is in the catalogue
mean_abs_pct            mean over all rows
n                       number of rows
"""

import argparse
import json
import tomllib
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from sandtable.cluster import load
from sandtable.cluster.topology import Topology
from sandtable.engine.network import Planner

ROWS = Path(__file__).parents[1] / "validation" / "rows" / "collectives.toml"
SMALLEST_BYTES = 10**6
_CALLS = {
    # bytes in and out of each of n members, for a message of size s
    "all_reduce": lambda s, n: (s, s),
    "all_gather": lambda s, n: (s // n, s),
    "reduce_scatter": lambda s, n: (s, s // n),
}


def main() -> None:
    """Print one line per curve, then everything as JSON."""
    args = parse_arguments()
    curves = tomllib.loads(ROWS.read_text(encoding="utf-8"))["curves"]
    if args.quick:
        curves = [curve for curve in curves if len(curve["size_bytes"]) == 1 or curve["gpus"] in (3, 8)]
    figures = {curve["id"]: judge(curve, show_rows=args.rows) for curve in curves}
    for name, figure in figures.items():
        print(
            f"{name:32} n {figure['n']:3}  mean {figure['mean_abs_pct']:5.1f} %  max {figure['max_abs_pct']:5.1f} %"
            f"{'  calibrated' if figure['calibrated'] else ''}{'  in catalogue' if figure['in_catalogue'] else ''}"
        )
    errors = {name: figure.pop("errors_pct") for name, figure in figures.items()}
    predicted = [name for name, figure in figures.items() if not figure["calibrated"]]
    unseen = [name for name in predicted if not figures[name]["in_catalogue"]]
    print(
        json.dumps(
            {
                "curves": figures,
                "predicted_mean_abs_pct": _mean(errors, predicted),
                "unseen_mean_abs_pct": _mean(errors, unseen),
                "mean_abs_pct": _mean(errors, list(errors)),
                "n": sum(map(len, errors.values())),
            }
        )
    )


def judge(curve: dict[str, Any], *, show_rows: bool) -> dict[str, Any]:
    """Return the errors of one curve, in per cent of the measured time."""
    planner = Planner(Topology(load(curve["machine"], nodes=curve["nodes"])))
    errors = []
    for size, measured_us in zip(curve["size_bytes"], _measured_us(curve), strict=True):
        if size < SMALLEST_BYTES:
            continue
        bytes_in, bytes_out = _CALLS[curve["op"]](size, curve["gpus"])
        plan = planner.collective(
            curve["op"],
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            groups=np.arange(curve["gpus"])[None],
            algorithm=curve.get("algorithm"),
        )
        errors.append(100 * (plan.total_ns / 1e3 / measured_us - 1))
        if show_rows:
            print(
                f"  {curve['id']:28} {size:12} B  measured {measured_us:10.1f} us"
                f"  predicted {plan.total_ns / 1e3:10.1f} us {errors[-1]:+6.1f} %  {plan.algorithm} {plan.protocol}"
            )
    return {
        "n": len(errors),
        "mean_abs_pct": round(mean(abs(error) for error in errors), 2),
        "max_abs_pct": round(max(abs(error) for error in errors), 2),
        "calibrated": curve["calibrated"],
        "in_catalogue": curve.get("in_catalogue", False),
        "errors_pct": errors,
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="long curves of 3 and 8 GPUs only")
    parser.add_argument("--rows", action="store_true", help="print every row")
    return parser.parse_args()


def _measured_us(curve: dict[str, Any]) -> list[float]:
    if "time_us" in curve:
        return list(curve["time_us"])
    passes = 2 if curve["op"] == "all_reduce" else 1
    factor = passes * (curve["gpus"] - 1) / curve["gpus"]
    pairs = zip(curve["size_bytes"], curve["busbw_gb_per_s"], strict=True)
    return [size * factor / (rate * 1e3) for size, rate in pairs]


def _mean(errors: dict[str, list[float]], names: list[str]) -> float | None:
    rows = [abs(error) for name in names for error in errors[name]]
    return round(mean(rows), 2) if rows else None


if __name__ == "__main__":
    main()
