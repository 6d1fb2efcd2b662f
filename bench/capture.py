"""Time and memory to capture a 3D-parallel GPT on thousands of virtual GPUs.

    python bench/capture.py --tp 8 --pp 16 --dp 24      # the 175B GPT at 3072 ranks, global batch 1536
    python bench/capture.py --tp 8 --pp 16 --dp 96      # at 12,288 ranks, four times the batch
    python bench/capture.py --quick

Runs examples/gpt_3d.py through the launcher, as `sandtable run` does, and saves the trace to a scratch directory.
Unknown flags go to the example (`--recompute full`, `--sequence-parallel`, ...). The last line is a JSON object:

ranks               tp x pp x dp
captured_ranks      ranks that really ran, including those that only verified a class
classes             classes of equal ranks
operators           operators of all ranks
operators_recorded  operators in the trace, which holds one rank per class
flops               floating-point operations of the whole job per step
wall_s              from calling the launcher until the trace is on disk, with the native library already built
core_s              processor time of all processes
peak_rss_gib        peak memory: the launcher, the fork server and the private memory of each rank
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sandtable.cluster import load
from sandtable.errors import SandtableError
from sandtable.report.progress import TerminalListener
from sandtable.trace import Trace, summarise_trace
from sandtable.units import GIB
from sandtable.vgpu import Job, core_path, launch

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt_3d.py"
GPUS_PER_NODE = 8
MICRO_BATCHES, QUICK_MICRO_BATCHES = 64, 8
"""Micro-batches per replica and step, unless --global-batch is given."""


def main() -> None:
    """Capture, then print the figures."""
    args, script_flags = parse_arguments()
    try:
        figures = measure(args, script_flags)
    except SandtableError as error:
        sys.exit(f"bench/capture.py: {error}")
    print(json.dumps(figures))


def measure(args: argparse.Namespace, script_flags: list[str]) -> dict[str, Any]:
    """Capture once and return the figures."""
    core_path()  # built here if need be, not in the time measured
    with tempfile.TemporaryDirectory(prefix="sandtable-bench-") as directory:
        job = make_job(args, script_flags)
        print(f"{job.world_size} ranks: {EXAMPLE.name} {' '.join(job.script_args)}", file=sys.stderr)
        start = time.perf_counter()
        with TerminalListener() as listen:
            trace = launch(job, listen=listen)
        trace.save(Path(directory))
        wall_seconds = time.perf_counter() - start
    return {**figures_of(trace), "wall_s": round(wall_seconds, 2)}


def make_job(args: argparse.Namespace, script_flags: list[str]) -> Job:
    """Return the example's job, on a cluster just large enough."""
    world_size = args.tp * args.pp * args.dp
    per_node = min(GPUS_PER_NODE, world_size)
    micro_batches = QUICK_MICRO_BATCHES if args.quick else MICRO_BATCHES
    global_batch = args.global_batch or micro_batches * args.micro_batch * args.dp
    flags: dict[str, object] = {
        "--size": args.size,
        "--tp": args.tp,
        "--pp": args.pp,
        "--dp": args.dp,
        "--global-batch": global_batch,
        "--micro-batch": args.micro_batch,
        "--steps": args.steps,
    }
    return Job(
        script=str(EXAMPLE),
        script_args=(*(str(part) for flag in flags.items() for part in flag), *script_flags),
        world_size=world_size,
        nproc_per_node=per_node,
        cluster=load(args.cluster, nodes=-(-world_size // per_node)),
        num_steps=args.steps,
    )


def figures_of(trace: Trace) -> dict[str, Any]:
    """Return the figures that the trace holds."""
    summary = summarise_trace(trace)
    return {
        "ranks": trace.world_size,
        "captured_ranks": len(trace.captured_ranks),
        "classes": len(trace.classes),
        "operators": summary.operators_total,
        "operators_recorded": summary.operators_captured,
        "flops": summary.flops_per_step,
        "core_s": round(trace.core_seconds, 2),
        "peak_rss_gib": round(trace.peak_rss_bytes / GIB, 2),
    }


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; return the unknown flags, which are the example's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tp", type=int, default=8, help="tensor-parallel ranks (default 8)")
    parser.add_argument("--pp", type=int, default=16, help="pipeline stages (default 16)")
    parser.add_argument("--dp", type=int, default=24, help="replicas (default 24)")
    parser.add_argument("--size", default="175b", help="model, by its name in examples/gpt_model.py (default 175b)")
    parser.add_argument("--micro-batch", type=int, default=1, help="samples per micro-batch (default 1)")
    parser.add_argument("--global-batch", type=int, help="samples per step (default: 64 micro-batches per replica)")
    parser.add_argument("--steps", type=int, default=1, help="optimizer steps (default 1)")
    parser.add_argument("--cluster", default="dgx-a100", help="machines of 8 GPUs (default dgx-a100)")
    parser.add_argument(
        "--quick", action="store_true", help="seconds: the 124m GPT at tp 2, pp 4, dp 4, 8 micro-batches"
    )
    if "--quick" in sys.argv:
        parser.set_defaults(tp=2, pp=4, dp=4, size="124m")
    args, script_flags = parser.parse_known_args()
    return args, script_flags


if __name__ == "__main__":
    main()
