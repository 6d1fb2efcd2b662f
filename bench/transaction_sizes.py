"""List the sizes of what ranks send each other when DeepSpeed trains bloom-560m, next to what theory says.

    python bench/transaction_sizes.py
    python bench/transaction_sizes.py --zero 3 --ranks 64
    python bench/transaction_sizes.py --quick

Needs DeepSpeed and Transformers; without them nothing is rehearsed. Sizes are exact: bytes that a rank passes to a
call, or gets from it if that is more. Start-up is what the first step has more than the last. The last line is a JSON
object:

skipped       what to install, if something is missing
ranks         ranks of the run
captured      ranks that ran
is_unsure     whether the classes of equal ranks are a guess
seconds       the time that the rehearsal took
step_ms       the predicted time of a step
parameters    parameters of the model
theory_bytes  two bytes per parameter: what the gradients, and what the parameters, must add up to in a step
step_bytes    bytes of all calls of a step on gradients and parameters, by operator
rows          per size: where ("start-up", or the phase of a step), operator, dtype, bytes, how many calls per rank
"""

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sandtable import LaunchOptions, Rehearsal, rehearse
from sandtable.trace import RankView
from sandtable.vgpu import core_path

SCRIPT = Path(__file__).parents[1] / "examples" / "deepspeed_bloom.py"
PACKAGES = ("deepspeed", "transformers")
GPUS_PER_NODE = 8
HALF = ("bfloat16", "float16")

Sizes = Counter[tuple[str, str, str, int]]
"""How many calls there are of each (phase, operator, dtype, bytes)."""


def main() -> None:
    """Rehearse, then print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3072, help="number of ranks (default 3072)")
    parser.add_argument("--zero", type=int, default=2, choices=[0, 1, 2, 3], help="stage of ZeRO (default 2)")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16"])
    parser.add_argument("--quick", action="store_true", help="a tiny model on 8 ranks")
    args = parser.parse_args()
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        print(json.dumps({"skipped": f"pip install {' '.join(missing)}", "rows": []}))
        return
    core_path()
    ranks, size = (8, "tiny") if args.quick else (args.ranks, "560m")
    start = time.perf_counter()
    flags = ("--size", size, "--zero", str(args.zero), "--dtype", args.dtype)
    options = LaunchOptions(ranks_per_node=GPUS_PER_NODE)
    rehearsal = rehearse(SCRIPT, *flags, cluster="dgx-a100", nodes=ranks // GPUS_PER_NODE, options=options)
    figures = figures_of(rehearsal, num_parameters(size)) | {"seconds": round(time.perf_counter() - start, 1)}
    print_table(figures["rows"])
    print(json.dumps({"skipped": ""} | figures))


def num_parameters(size: str) -> int:
    """Return the parameters of the model by its formula: embedding, layers, and the norms before and after them."""
    sys.path.insert(0, str(SCRIPT.parent))
    from deepspeed_bloom import SIZES  # type: ignore[import-not-found]

    config = SIZES[size]
    hidden = config["hidden_size"]
    return int(config["vocab_size"] * hidden + config["n_layer"] * (12 * hidden**2 + 13 * hidden) + 4 * hidden)


def figures_of(rehearsal: Rehearsal, parameters: int) -> dict[str, Any]:
    """Return the figures of a rehearsal."""
    view = rehearsal.trace.rank(rehearsal.trace.world_size - 1)
    first, steady = sizes_of(view, 1), sizes_of(view, rehearsal.trace.num_steps)
    start_up = without_phases(first) - without_phases(steady)
    step: Counter[str] = Counter()
    for (_, op, dtype, size), count in steady.items():
        step[op] += size * count if dtype in HALF else 0
    rows = [("start-up", op, dtype, size, count) for (op, dtype, size), count in start_up.items()]
    rows += [(*key, count) for key, count in steady.items()]
    return {
        "ranks": rehearsal.trace.world_size,
        "captured": len(rehearsal.trace.captured_ranks),
        "is_unsure": any(finding.rule == "unsure-classes" for finding in rehearsal.findings),
        "step_ms": round(rehearsal.step_seconds * 1e3, 3),
        "parameters": parameters,
        "theory_bytes": 2 * parameters,
        "step_bytes": dict(+step),
        "rows": sorted(rows, key=lambda row: (row[0] != "start-up", row[0], -row[3])),
    }


def sizes_of(view: RankView, step: int) -> Sizes:
    """Return the sizes of one step."""
    sizes: Sizes = Counter()
    for call in view.collectives(view.step_slice(step)):
        sizes[call.phase.name.lower(), call.op, call.dtype, max(call.bytes_in, call.bytes_out)] += 1
    return sizes


def without_phases(sizes: Sizes) -> Counter[tuple[str, str, int]]:
    """Add up over the phases."""
    totals: Counter[tuple[str, str, int]] = Counter()
    for (_, *key), count in sizes.items():
        totals[tuple(key)] += count
    return totals


def print_table(rows: list[tuple[str, str, str, int, int]]) -> None:
    """Print one line per size."""
    print(f"{'where':<10} {'operator':<15} {'dtype':<9} {'bytes':>14} {'calls':>6}")
    for where, op, dtype, size, count in rows:
        print(f"{where:<10} {op:<15} {dtype:<9} {size:>14,} {count:>6,}")


if __name__ == "__main__":
    main()
