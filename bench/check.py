"""How much longer `sandtable check` takes than `sandtable run --no-check`.

    python bench/check.py            # three rounds of two cases on 3,072 ranks, each command as a user types it
    python bench/check.py --quick    # one round of a small case

Each round runs the two commands one after the other, in turns first; a ratio is the median over the rounds. Both
commands capture, simulate and write the trace and the report. The last line is a JSON object:

demo      the 175B GPT of scripts/demo on 3,072 ranks, one step; at most 1.1 is the aim
ranks     three steps of the same ranks with the 22B GPT, so that all rules have something to look at; at most 1.3
          each with
  check_s, run_s          medians of the time that the commands take
  ratio                   check_s / run_s of a round, the median
  core_ratio              the same of the processor time of all processes
  captured_ranks          ranks that really ran
  findings                errors, warnings and notes that were found
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLE = str(ROOT / "examples" / "gpt_3d.py")
_SPLIT = ("--tp", "8", "--pp", "16", "--micro-batch", "1")
_RANKS = ("--cluster", "dgx-a100", "--nnodes", "384", "--nproc-per-node", "8")
CASES = {
    "demo": (*_RANKS, "--steps", "1", EXAMPLE, "--size", "175b", *_SPLIT, "--global-batch", "1536"),
    "ranks": (*_RANKS, "--steps", "3", EXAMPLE, "--size", "22b", *_SPLIT, "--global-batch", "384", "--steps", "3"),
}
QUICK = {"quick": ("--nproc-per-node", "4", "--steps", "2", EXAMPLE, "--size", "tiny", "--tp", "2", "--steps", "2")}
COMMANDS = {"run": ("run", "--no-check"), "check": ("check",)}


def main() -> None:
    """Measure all cases, then print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds: one round of a small case")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case (default 3)")
    args = parser.parse_args()
    cases, rounds = (QUICK, 1) if args.quick else (CASES, args.rounds)
    print(json.dumps({name: measure(words, rounds=rounds) for name, words in cases.items()}))


def measure(words: tuple[str, ...], *, rounds: int) -> dict[str, Any]:
    """Run both commands `rounds` times, in turns first, and return the figures."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="sandtable-bench-") as directory:
        _run("run", words, directory)  # builds what is not built, and fills the caches of the system
        for number in range(rounds):
            for name in sorted(COMMANDS, reverse=number % 2 == 0):
                seconds[name].append(_run(name, words, directory))
                print(f"{name}: {seconds[name][-1][0]:.2f} s", file=sys.stderr)
        _run("check", words, directory)
        summary = json.loads((Path(directory) / "check" / "summary.json").read_text(encoding="utf-8"))
    ratios = [
        (check[0] / run[0], check[1] / run[1]) for check, run in zip(seconds["check"], seconds["run"], strict=True)
    ]
    found = [finding["severity"] for finding in summary["findings"]]
    return {
        "check_s": round(statistics.median(wall for wall, _ in seconds["check"]), 2),
        "run_s": round(statistics.median(wall for wall, _ in seconds["run"]), 2),
        "ratio": round(statistics.median(wall for wall, _ in ratios), 3),
        "core_ratio": round(statistics.median(core for _, core in ratios), 3),
        "captured_ranks": len(summary["capture"]["captured_ranks"]),
        "findings": {severity: found.count(severity) for severity in ("error", "warning", "note")},
    }


def _run(name: str, words: tuple[str, ...], directory: str) -> tuple[float, float]:
    """Run one command and return its time and the processor time of its processes."""
    out = ("--out", str(Path(directory) / name))
    fail = ("--fail-on", "never")
    start, spent = time.perf_counter(), _core_seconds()
    subprocess.run(
        [sys.executable, "-m", "sandtable", *COMMANDS[name], *fail, *out, *words],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    return time.perf_counter() - start, _core_seconds() - spent


def _core_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
