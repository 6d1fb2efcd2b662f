"""Rehearse training whose ranks hold differently cut shards of flat buffers, on up to 3,072 ranks.

    python bench/sharded_ranks.py
    python bench/sharded_ranks.py --quick

FSDP1 (`use_orig_params`), DeepSpeed's ZeRO-1 and Megatron-Core's distributed optimizer with 16 micro-batches per step,
on a GPT of 1.3 billion parameters. Frameworks that are not installed are skipped. On 8 ranks every rank runs, too
(`ranks="all"`), and step time and memory are compared. The last line is a JSON object:

largest_ratio        the longest time for the most ranks, as a multiple of that for 64
largest_core_ratio   the same of processor time, which other work on the machine does not disturb
num_unsure           runs whose classes were a guess
largest_difference   of step time and peak memory from a run of all ranks, as a share
skipped              frameworks that were not rehearsed, and why
rows                 per run: framework, ranks, captured ranks, classes, whether they are unsure, seconds and processor
                     seconds, ratios of both to those for 64 ranks, milliseconds per step, peak memory
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sandtable import Launcher, LaunchOptions, Rehearsal, rehearse
from sandtable.vgpu import core_path

EXAMPLES = Path(__file__).parents[1] / "examples"
GPUS_PER_NODE = 8
BASE = 64
"""The number of ranks that others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A training script that shards flat buffers; `package` must be installed."""

    name: str
    script: str
    flags: tuple[str, ...] = ()
    package: str
    install: str = ""


FRAMEWORKS = (
    Framework(name="FSDP1", script="gpt_fsdp1.py", package="torch"),
    Framework(name="ZeRO-1", script="gpt_deepspeed.py", package="deepspeed", install="pip install deepspeed"),
    Framework(
        name="Megatron-Core",
        script="gpt_megatron.py",
        flags=("--micro-batches", "16"),
        package="megatron",
        install="pip install megatron-core",
    ),
)


def main() -> None:
    """Rehearse all frameworks on all numbers of ranks, then print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 3072], help="numbers of ranks")
    parser.add_argument("--size", default="1.3b", help="size of the GPT (default 1.3b)")
    parser.add_argument("--only", choices=[framework.name for framework in FRAMEWORKS], help="one framework")
    parser.add_argument("--quick", action="store_true", help="FSDP1 of a tiny GPT on 8 and 64 ranks")
    args = parser.parse_args()
    worlds, size = ([8, BASE], "tiny") if args.quick else (args.ranks, args.size)
    only = args.only or ("FSDP1" if args.quick else None)
    frameworks = [framework for framework in FRAMEWORKS if only in (None, framework.name)]
    core_path()  # if need be, the library is built here, outside the measured time
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for framework in frameworks:
        if importlib.util.find_spec(framework.package) is None:
            skipped[framework.name] = framework.install
        else:
            rows += measure(framework, worlds, size)
    print(json.dumps(figures(rows, skipped)))


def measure(framework: Framework, worlds: Sequence[int], size: str) -> Iterator[dict[str, Any]]:
    """Rehearse one framework; the launcher is warm when the clock starts."""
    with Launcher() as launcher:
        run(framework, 1, size, launcher)
        base: dict[str, float] | None = None
        for world_size in [*(size for size in worlds if size == BASE), *(size for size in worlds if size != BASE)]:
            start = time.perf_counter()
            rehearsal = run(framework, world_size, size, launcher)
            seconds = time.perf_counter() - start
            spent = {"ratio": seconds, "core_ratio": rehearsal.trace.core_seconds}
            base = spent if world_size == BASE else base
            row = {"framework": framework.name} | describe(rehearsal) | {"seconds": round(seconds, 2)}
            row |= {name: round(value / base[name], 2) if base else None for name, value in spent.items()}
            if world_size <= GPUS_PER_NODE:
                row["difference"] = difference(rehearsal, run(framework, world_size, size, launcher, ranks="all"))
            print(row, file=sys.stderr, flush=True)
            yield row


def run(
    framework: Framework, world_size: int, size: str, launcher: Launcher, *, ranks: Literal["auto", "all"] = "auto"
) -> Rehearsal:
    """Rehearse three steps."""
    per_node = min(world_size, GPUS_PER_NODE)
    options = LaunchOptions(ranks_per_node=per_node, ranks=ranks, launcher=launcher)
    flags = ("--size", size, *framework.flags)
    return rehearse(EXAMPLES / framework.script, *flags, nodes=world_size // per_node, options=options)


def describe(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return the figures of one run."""
    return {
        "ranks": rehearsal.trace.world_size,
        "captured": len(rehearsal.trace.captured_ranks),
        "classes": len(rehearsal.trace.classes),
        "is_unsure": any(finding.rule == "unsure-classes" for finding in rehearsal.findings),
        "core_seconds": round(rehearsal.trace.core_seconds, 2),
        "step_ms": round(rehearsal.step_seconds * 1e3, 3),
        "peak_bytes": peak_bytes(rehearsal),
    }


def difference(few: Rehearsal, every: Rehearsal) -> float:
    """Return by which share step time or peak memory of a run of a few ranks differs from that of all ranks."""
    pairs = (few.step_seconds, every.step_seconds), (peak_bytes(few), peak_bytes(every))
    return max(abs(first / second - 1) for first, second in pairs)


def peak_bytes(rehearsal: Rehearsal) -> int:
    """Return the most memory that any rank has allocated."""
    return max(rank_class.records.memory.allocated_bytes for rank_class in rehearsal.trace.classes)


def figures(rows: Sequence[dict[str, Any]], skipped: dict[str, str]) -> dict[str, Any]:
    """Return the figures of all runs."""
    largest = [row for row in rows if row["ranks"] == max(row["ranks"] for row in rows) and row["ratio"]]
    return {
        "largest_ratio": max((row["ratio"] for row in largest), default=None),
        "largest_core_ratio": max((row["core_ratio"] for row in largest), default=None),
        "num_unsure": sum(row["is_unsure"] for row in rows),
        "largest_difference": max((row["difference"] for row in rows if "difference" in row), default=None),
        "skipped": skipped,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
