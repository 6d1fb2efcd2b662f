"""How long it takes to capture a 3D-parallel GPT on thousands of virtual GPUs, and how much memory.

    python bench/capture.py --tp 8 --pp 16 --dp 24      # the 175B GPT at 3072 ranks, global batch 1536
    python bench/capture.py --tp 8 --pp 16 --dp 96      # at 12,288 ranks, four times the batch
    python bench/capture.py --quick

Runs examples/gpt_3d.py through the launcher, as `sandtable run` does, and saves the trace to a scratch directory. Flags
it does not know go to the example (`--recompute full`, `--sequence-parallel`, ...). The last line is a JSON object:

ranks               tp x pp x dp
captured_ranks      ranks really run, those that only verified a class too
classes             kinds of ranks found
operators           operators of the whole job, all ranks together
operators_recorded  of these, those in the trace: one rank of each class
flops               floating-point operations of the whole job in one step
wall_s              from the call of the launcher until the trace is on disk; a core built before is found, not built
core_s              processor time of all processes together
peak_rss_gib        most memory at one time: the launcher, the process ranks are forked from, and what each rank has
                    to itself
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
from sandtable.trace import Trace, summarise
from sandtable.units import GIB
from sandtable.vgpu import Job, TerminalView, core_path, launch

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt_3d.py"
GPUS_PER_NODE = 8
MICRO_BATCHES = 64
"""A replica's micro-batches in a step, unless --global-batch says otherwise."""


def main() -> None:
    """Capture, then print the figures."""
    args, script_flags = parse_arguments()
    try:
        figures = measure(args, script_flags)
    except SandtableError as error:
        sys.exit(f"bench/capture.py: {error}")
    print(json.dumps(figures))


def measure(args: argparse.Namespace, script_flags: list[str]) -> dict[str, Any]:
    """One capture and its figures."""
    core = str(core_path())
    with tempfile.TemporaryDirectory(prefix="sandtable-bench-") as directory:
        job = make_job(args, script_flags, core=core, out=Path(directory))
        print(f"{job.world_size} ranks: {EXAMPLE.name} {' '.join(job.script_args)}", file=sys.stderr)
        start = time.perf_counter()
        trace = launch(job, view=TerminalView())
        wall_seconds = time.perf_counter() - start
    return {**figures_of(trace), "wall_s": round(wall_seconds, 2)}


def make_job(args: argparse.Namespace, script_flags: list[str], *, core: str, out: Path) -> Job:
    """The example on a cluster just large enough."""
    world_size = args.tp * args.pp * args.dp
    per_node = min(GPUS_PER_NODE, world_size)
    global_batch = args.global_batch or MICRO_BATCHES * args.micro_batch * args.dp
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
        out=out,
        core_path=core,
    )


def figures_of(trace: Trace) -> dict[str, Any]:
    """What the trace knows of itself."""
    summary = summarise(trace)
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
    """The command line, and what of it is for the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tp", type=int, default=8, help="tensor-parallel ranks (default 8)")
    parser.add_argument("--pp", type=int, default=16, help="pipeline stages (default 16)")
    parser.add_argument("--dp", type=int, default=24, help="replicas (default 24)")
    parser.add_argument("--size", default="175b", help="model, by its name in examples/gpt_model.py (default 175b)")
    parser.add_argument("--micro-batch", type=int, default=1, help="samples a micro-batch (default 1)")
    parser.add_argument("--global-batch", type=int, help="samples a step (default: 64 micro-batches a replica)")
    parser.add_argument("--steps", type=int, default=1, help="optimizer steps (default 1)")
    parser.add_argument("--cluster", default="dgx-a100", help="machines of 8 GPUs (default dgx-a100)")
    parser.add_argument("--quick", action="store_true", help="seconds: the 124m GPT at tp 2, pp 4, dp 4, unless given")
    parser.set_defaults(**({"tp": 2, "pp": 4, "dp": 4, "size": "124m"} if "--quick" in sys.argv else {}))
    args, script_flags = parser.parse_known_args()
    return args, script_flags


if __name__ == "__main__":
    main()
