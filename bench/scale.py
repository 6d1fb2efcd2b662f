"""Time and memory to rehearse a model of a trillion parameters on thousands of GPUs, from scratch to the report.

    python bench/scale.py --dp 6        # 3072 A100, tp 8, pp 64, batch 3072: the last row of Narayanan 2021, Table 1
    python bench/scale.py --dp 192      # the same on 98,304 GPUs
    python bench/scale.py --quick

Runs `sandtable run` as a user would, in a process of its own. The last line is a JSON object:

gpus                            tp x pp x dp
step_s                          predicted step time
measured_step_s                 published step time, if there is one (computed from the published FLOP/s)
wall_s                          duration of the whole command, including the report
core_s                          processor time of the command and all its children
gpu_seconds_per_core_second     gpus x step_s / core_s
peak_rss_gib                    peak memory
files                           files the command wrote
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "validation" / "scripts" / "megatron_gpt.py"
COMMAND = "from sandtable.cli import main; main()"
GPUS_PER_NODE = 8
PUBLISHED_STEP_S = {6: 102.372}  # seconds, by dp
"""Narayanan et al. 2021 (arXiv:2104.04473), Table 1, the model of 1008 billion parameters: FLOPs per step divided by
163 TFLOP/s on each of 3072 GPUs."""

MODELS = {
    "1t": {"--layers": 128, "--hidden": 25600, "--heads": 160, "--seq": 2048, "--vocab": 51200},
    "small": {"--layers": 8, "--hidden": 1024, "--heads": 16, "--seq": 512, "--vocab": 51200},
}


def main() -> None:
    """Rehearse, then print the figures."""
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="sandtable-bench-") as directory:
        print(json.dumps(measure(args, Path(directory))))


def measure(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Rehearse once and return the figures."""
    gpus = args.tp * args.pp * args.dp
    nodes = -(-gpus // GPUS_PER_NODE)
    command = [sys.executable, "-c", COMMAND, "run", "--cluster", args.cluster, "--nnodes", str(nodes)]
    command += ["--nproc-per-node", str(gpus // nodes), "--steps", "1", "--out", str(out), str(SCRIPT)]
    command += [str(part) for flag in flags(args).items() for part in flag if part is not None]
    print(f"{gpus} GPUs: sandtable {' '.join(command[3:])}", file=sys.stderr)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr)
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    core_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summary = json.loads((out / "summary.json").read_text())
    step_s = summary["step_seconds"]
    figures = {
        "gpus": gpus,
        "step_s": round(step_s, 3),
        "wall_s": round(wall_s, 2),
        "core_s": round(core_s, 2),
        "gpu_seconds_per_core_second": round(gpus * step_s / core_s, 1),
        # The capture sums over its processes; the simulation runs in the command itself.
        "peak_rss_gib": round(max(summary["effort"]["peak_rss_bytes"], after.ru_maxrss * 1024) / 2**30, 2),
        "files": sorted(path.name for path in out.iterdir()),
    }
    if args.model == "1t" and args.dp in PUBLISHED_STEP_S:
        figures["measured_step_s"] = PUBLISHED_STEP_S[args.dp]
    return figures


def flags(args: argparse.Namespace) -> dict[str, Any]:
    """Return the script's flags; `None` marks flags without a value."""
    return {
        **MODELS[args.model],
        "--tp": args.tp,
        "--pp": args.pp,
        "--global-batch": args.micro_batches * args.dp,
        "--micro-batch": 1,
        "--recompute": "full",
        "--scatter-gather": None,
        "--steps": 1,
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--pp", type=int, default=64)
    parser.add_argument("--dp", type=int, default=6, help="replicas (default 6)")
    parser.add_argument("--model", choices=sorted(MODELS), default="1t")
    parser.add_argument("--micro-batches", type=int, default=512, help="per replica and step (default 512)")
    parser.add_argument("--cluster", default="dgx-a100", help="machines of 8 GPUs (default dgx-a100)")
    parser.add_argument("--quick", action="store_true", help="seconds: a small model at tp 2, pp 4, dp 4, unless given")
    if "--quick" in sys.argv:
        parser.set_defaults(tp=2, pp=4, dp=4, model="small", micro_batches=8)
    return parser.parse_args()


if __name__ == "__main__":
    main()
