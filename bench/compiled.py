"""Compare predicted with published gains of torch.compile.

    python bench/compiled.py
    python bench/compiled.py --quick          # three small rows
    python bench/compiled.py --only llama3    # rows whose name contains a text

Rehearses each step of `compiled_cases/pairs.toml` eagerly and compiled, and divides the two times. Rows with `fitted`
were used to choose what a compiled graph costs the host; all others are predictions.

Operators differ between releases of a model library, and with them the ratio. Where the measured release is known, the
file names it; install it beside the others: `pip install --target DIR transformers==5.14.1 diffusers`, `pip install
--target DIR --no-deps ibm-fms==0.0.6`, then `PYTHONPATH=DIR python bench/compiled.py`; for the rows called vision,
transformers==4.30.2 and `--only vision`. The last line is a JSON object:

rows               for each row: `published` and `predicted`, the eager over the compiled time; `error_pct` of that
                   ratio; `times_ms`: predicted eager, predicted compiled, published eager, published compiled;
                   `fitted`; `seconds` that the two rehearsals took; `other_release`: which one was rehearsed, where
                   that is not the measured one
mean_error_pct     the mean of the absolute errors of rows that were not fitted
within_10_pct      how many of those rows are within 10 %, of how many
"""

import argparse
import importlib.metadata
import importlib.util
import json
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandtable import Launcher, LaunchOptions, rehearse
from sandtable.cluster import load

ROOT = Path(__file__).parents[1]
QUICK = ("llama_1b_forward", "llama_1b_forward_graphs", "llama3_8b_8_h100")
LIMIT_PCT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One step, measured twice; a variant is the last argument of the script, if any, and its milliseconds.

    `release` is that of the required package which was measured, where it is known.
    """

    id: str
    cluster: str
    script: str
    requires: str = ""
    release: str = ""
    gpus: int = 1
    args: tuple[str, ...]
    eager: tuple[str, float]
    compiled: tuple[str, float]
    fitted: bool = False


def main() -> None:
    """Rehearse all pairs, then print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three small rows")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    times: dict[tuple[str, ...], float] = {}
    with Launcher() as launcher:
        for pair in read_pairs():
            if arguments.only not in pair.id or (arguments.quick and pair.id not in QUICK):
                continue
            if pair.requires and importlib.util.find_spec(pair.requires) is None:
                print(f"{pair.id} is left out: {pair.requires} is not installed", file=sys.stderr)
                continue
            rows[pair.id] = compare(pair, times, launcher) | other_release(pair)
            print(f"{pair.id}: {rows[pair.id]}", file=sys.stderr)
    blind = [abs(row["error_pct"]) for row in rows.values() if not row["fitted"]]
    figures = {
        "rows": rows,
        "mean_error_pct": round(sum(blind) / len(blind), 1) if blind else None,
        "within_10_pct": [sum(error <= LIMIT_PCT for error in blind), len(blind)],
    }
    print(json.dumps(figures))


def read_pairs() -> Iterator[Pair]:
    """Yield the rows of the file."""
    with open(Path(__file__).parent / "compiled_cases" / "pairs.toml", "rb") as file:
        tables = tomllib.load(file)["tables"]
    for table in tables:
        shared = {name: table[name] for name in ("cluster", "script", "requires", "release") if name in table}
        for row in table["rows"]:
            yield Pair(**{**shared, **row})


def other_release(pair: Pair) -> dict[str, str]:
    """Return the installed release of what a pair requires, if another one was measured."""
    if not pair.release:
        return {}
    installed = importlib.metadata.version(pair.requires)
    return {} if installed == pair.release else {"other_release": f"{pair.requires} {installed}"}


def compare(pair: Pair, times: dict[tuple[str, ...], float], launcher: Launcher) -> dict[str, Any]:
    """Return predicted and published ratio of a pair; `times` keeps those that several pairs share."""
    start = time.perf_counter()
    predicted = []
    for variant, _ in (pair.eager, pair.compiled):
        key = (pair.script, pair.cluster, str(pair.gpus), *pair.args, variant)
        if key not in times:
            times[key] = rehearsed_ms(pair, variant, launcher)
        predicted.append(times[key])
    published_ratio = pair.eager[1] / pair.compiled[1]
    ratio = predicted[0] / predicted[1]
    return {
        "published": round(published_ratio, 3),
        "predicted": round(ratio, 3),
        "error_pct": round(100 * (ratio / published_ratio - 1), 1),
        "times_ms": [round(milliseconds, 2) for milliseconds in (*predicted, pair.eager[1], pair.compiled[1])],
        "fitted": pair.fitted,
        "seconds": round(time.perf_counter() - start, 1),
    }


def rehearsed_ms(pair: Pair, variant: str, launcher: Launcher) -> float:
    """Return the predicted time of a step."""
    file = ROOT / pair.cluster
    name = str(file) if file.exists() else pair.cluster
    per_node = min(pair.gpus, load(name).gpus_per_node)
    cluster = load(name, nodes=pair.gpus // per_node)
    options = LaunchOptions(ranks_per_node=per_node, launcher=launcher)
    arguments = (*pair.args, variant) if variant else pair.args
    run = rehearse(ROOT / pair.script, *arguments, cluster=cluster, steps=4, options=options)
    return float(run.timeline.step_ns / 1e6)


if __name__ == "__main__":
    main()
