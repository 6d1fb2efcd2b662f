"""Measure what many steps cost, and what marking them does.

    python bench/steps.py
    python bench/steps.py --quick

Rehearses a script of 10,000 small training steps on one virtual GPU: with --steps 3, with all of its steps, and with
all of them marked by --step-marker. The last line is a JSON object:

steps           steps of the script (with --quick 200)
few_seconds     wall-clock time with --steps 3: the rest of the script is left alone
all_seconds     wall-clock time with all steps, from the script to the figures
marked_seconds  the same with a step marker, which looks at every return of a function
all_rss_mib     the most memory that all steps took
described       the number of the step that the figures describe
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from sandtable import Launcher, LaunchOptions, Rehearsal, rehearse
from sandtable.vgpu import core_path

SCRIPT = """
import sys
import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.rand(8, 64, device="cuda")

def train():
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

for _ in range(int(sys.argv[1])):
    train()
"""


def main() -> None:
    """Rehearse the script three times, then print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the script (default 10000)")
    parser.add_argument("--quick", action="store_true", help="200 steps")
    args = parser.parse_args()
    num_steps = 200 if args.quick else args.steps
    core_path()  # if need be, the library is built here, outside the measured time
    with Launcher() as launcher:
        measure(launcher, num_steps, captured=1)  # loads torch
        few_seconds, _ = measure(launcher, num_steps, captured=3)
        all_seconds, run = measure(launcher, num_steps, captured=num_steps)
        marked_seconds, marked = measure(launcher, num_steps, captured=num_steps, marker="__main__:train")
    assert (run.trace.num_steps, marked.trace.num_steps) == (num_steps, num_steps)
    figures = {
        "steps": num_steps,
        "few_seconds": round(few_seconds, 2),
        "all_seconds": round(all_seconds, 2),
        "marked_seconds": round(marked_seconds, 2),
        "all_rss_mib": round(run.trace.peak_rss_bytes / 2**20),
        "described": run.timeline.step_number,
    }
    print(json.dumps(figures))


def measure(launcher: Launcher, num_steps: int, *, captured: int, marker: str = "") -> tuple[float, Rehearsal]:
    """Rehearse a script of `num_steps` steps, of which `captured` are captured; return the time and the rehearsal."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "train.py"
        script.write_text(SCRIPT)
        options = LaunchOptions(ranks_per_node=1, launcher=launcher, step_marker=marker)
        start = time.perf_counter()
        run = rehearse(script, str(num_steps), steps=captured, options=options)
        seconds = time.perf_counter() - start
    print(f"{captured} of {num_steps} steps {marker}: {seconds:.2f} s", file=sys.stderr)
    return seconds, run


if __name__ == "__main__":
    main()
