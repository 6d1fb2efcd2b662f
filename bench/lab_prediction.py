"""Compare predicted with measured step times: the same scripts on labs built on this machine.

    sudo python bench/lab_prediction.py
    sudo python bench/lab_prediction.py --only unequal --steps 12
    sudo python bench/lab_prediction.py --quick

There are three labs (LABS), one with unequal links, and two ways to train in parallel (METHODS). For each lab, the
benchmark rehearses the scripts as `sandtable run` does, calibrates hosts and links with the operators of the
rehearsals, and runs the unchanged scripts for real with gloo. The measured step time is the time between the lines that
a script prints: the median after a warm-up. No prediction uses the real run of its script. The last line is a JSON
object:

rows          lab, method, predicted_s, measured_s, error_pct, and the range of the measured steps
max_abs_pct   largest absolute error
mean_abs_pct  mean absolute error
skipped       instead of all others: why no lab can be built here
"""

import argparse
import json
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.engine.compute import MeasuredRow, MeasuredTable
from sandtable.errors import SandtableError
from sandtable.lab import Lab, LabPlan, calibrate, machine_text, missing
from sandtable.report.progress import TerminalListener
from sandtable.trace import Signature, Trace
from sandtable.vgpu import Job, launch

EXAMPLES = Path(__file__).parents[1] / "examples"
MBIT = 10**6 / 8
CORES = 0.4
"""Cores per host: 4 hosts leave part of 2 cores to the kernel's network stack."""
WARM_UP = 2

LABS = {
    "two": [200 * MBIT] * 2,
    "four": [100 * MBIT] * 4,
    "unequal": [200 * MBIT] * 3 + [50 * MBIT],
}
METHODS = {
    "ddp": ["gpt_ddp.py", "--size", "2m", "--amp", "none", "--accumulate", "1", "--micro-batch", "4"],
    "pipeline": ["gpt_pp.py", "--size", "2m", "--batch", "32", "--micro-batch", "8"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One script on one lab."""

    lab: str
    method: str
    predicted_s: float
    measured_s: float
    fastest_s: float
    slowest_s: float

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted_s / self.measured_s - 1)


def main() -> None:
    """Predict and measure; print each row as soon as it is complete."""
    args = parse_arguments()
    if reason := missing():
        print(json.dumps({"skipped": reason}))
        return
    rows = []
    try:
        for name in args.only:
            for row in compare(name, args):
                print(show(row), flush=True)
                rows.append(row)
    except SandtableError as error:
        sys.exit(f"bench/lab_prediction.py: {error}")
    print(json.dumps(figures(rows)))


def compare(name: str, args: argparse.Namespace) -> list[Row]:
    """Return the rows of all methods on one lab."""
    plan = LabPlan.of_bandwidths(LABS[name], cores=args.cores)
    before = measure_all(plan, args)
    with tempfile.TemporaryDirectory(prefix="sandtable-bench-") as directory:
        traces = {method: rehearse(method, plan, Path(directory)) for method in args.methods}
        predicted = predict(traces, plan, Path(directory))
    after = before if args.quick else measure_all(plan, args)
    rows = []
    for method, seconds in predicted.items():
        steps = before[method] + after[method]
        rows.append(
            Row(
                lab=name,
                method=method,
                predicted_s=seconds,
                measured_s=median(steps),
                fastest_s=min(steps),
                slowest_s=max(steps),
            )
        )
    return rows


def measure_all(plan: LabPlan, args: argparse.Namespace) -> dict[str, list[float]]:
    """Measure real steps of all methods: before and after calibration, since the load of the machine varies."""
    with Lab(plan) as lab:
        return {method: measure(method, lab, args.steps)[WARM_UP:] for method in args.methods}


def rehearse(method: str, plan: LabPlan, directory: Path) -> Trace:
    """Capture the script on virtual devices, one per host."""
    script, *flags = METHODS[method]
    num_hosts = len(plan.hosts)
    job = Job(
        script=str(EXAMPLES / script),
        script_args=tuple(flags),
        world_size=num_hosts,
        nproc_per_node=1,
        cluster=load("lab", nodes=num_hosts),
        num_steps=3,
    )
    with TerminalListener() as listen:
        return launch(job, listen=listen)


def predict(traces: dict[str, Trace], plan: LabPlan, directory: Path) -> dict[str, float]:
    """Return the seconds per step of each method, with hosts and links calibrated now."""
    signatures = dict.fromkeys(text for trace in traces.values() for text in trace.signatures.texts)
    found = calibrate(tuple(signatures), plan=plan)
    file = directory / "calibrated.toml"
    file.write_text(machine_text(found, title="Lab", plan=plan), encoding="utf-8")
    cluster = load(str(file))
    table = MeasuredTable(MeasuredRow(signature=Signature.parse(row.signature), ns=row.ns) for row in found.operators)
    return {method: simulate(trace, cluster, measured=table).step_ns / 1e9 for method, trace in traces.items()}


def measure(method: str, lab: Lab, num_steps: int) -> list[float]:
    """Return the seconds between the lines that the script prints, one per step."""
    script, *flags = METHODS[method]
    stamps: list[float] = []
    lines: list[str] = []

    def listen(host: str, line: str) -> None:
        lines.append(f"{host}: {line}")
        if re.match(r"step \d+ loss ", line):
            stamps.append(time.perf_counter())

    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    result = lab.run([*command, str(EXAMPLES / script), *flags, "--steps", str(num_steps)], show=listen)
    if result.exit_code or len(stamps) != num_steps:
        sys.exit("\n".join(["bench/lab_prediction.py: the script failed on the lab", *lines[-20:]]))
    return [after - before for before, after in pairwise(stamps)]


def show(row: Row) -> str:
    """Format one row."""
    spread = f"{row.fastest_s:.3f}-{row.slowest_s:.3f}"
    return (
        f"{row.lab:8} {row.method:9} predicted {row.predicted_s:6.3f} s  measured {row.measured_s:6.3f} s "
        f"({spread})  error {row.error_pct:+5.1f} %"
    )


def figures(rows: list[Row]) -> dict[str, Any]:
    """Return the JSON object."""
    errors = [abs(row.error_pct) for row in rows]
    names = ("lab", "method", "predicted_s", "measured_s", "fastest_s", "slowest_s", "error_pct")
    return {
        "rows": [{name: _rounded(getattr(row, name)) for name in names} for row in rows],
        "max_abs_pct": round(max(errors), 2),
        "mean_abs_pct": round(mean(errors), 2),
    }


def _rounded(value: str | float) -> str | float:
    return value if isinstance(value, str) else round(value, 4)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LABS, action="append", help="this lab alone; repeatable")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="default: all")
    parser.add_argument("--steps", type=int, help="real steps before calibration, and again after (default 7)")
    parser.add_argument("--cores", type=float, help=f"processors per host (default {CORES})")
    parser.add_argument("--quick", action="store_true", help="ddp on lab two, a core per host, 5 steps, unless given")
    args = parser.parse_args()
    args.only = args.only or (["two"] if args.quick else [*LABS])
    args.methods = args.methods or (["ddp"] if args.quick else [*METHODS])
    args.steps = args.steps or (5 if args.quick else 7)
    args.cores = args.cores or (1.0 if args.quick else CORES)
    return args


if __name__ == "__main__":
    main()
