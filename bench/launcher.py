"""Measure what a second launch costs: the fork server, with torch loaded, serves every launch of a Launcher.

    python bench/launcher.py
    python bench/launcher.py --quick

Launches examples/gpt_3d.py on 16 virtual GPUs several times with one Launcher. The last line is a JSON object:

first_seconds     wall-clock time of the first launch, which loads torch and the virtual GPU
second_seconds    median of the later launches
script_seconds    the script's own share, from the start of the first rank to the end of the last
overhead_seconds  the launcher's share
empty_seconds     median of later launches of an empty script on one rank: the bare cost of launching
ratio             second_seconds / first_seconds
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from sandtable.cluster import load
from sandtable.events import Event, RankCaptured, RankStarted
from sandtable.vgpu import Job, Launcher, core_path

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt_3d.py"


class Clock:
    """Notes when the first rank starts and the last one ends."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RankStarted) and self.first is None:
            self.first = time.perf_counter()
        if isinstance(event, RankCaptured):
            self.last = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Return the seconds from the first start to the last end."""
        assert self.first is not None, "a launch starts ranks"
        return self.last - self.first


def main() -> None:
    """Launch a few times, then print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="launches after the first (default 5)")
    parser.add_argument("--quick", action="store_true", help="one launch after the first, on 4 ranks")
    args = parser.parse_args()
    job = make_job(*((1, 2, 2) if args.quick else (2, 4, 2)))
    core_path()  # if need be, the library is built here, outside the measured time
    with Launcher() as launcher:
        first, _ = measure(launcher, job)
        repeats = range(1 if args.quick else args.repeats)
        later = [measure(launcher, job) for _ in repeats]
        with tempfile.NamedTemporaryFile(suffix=".py") as script:
            empty = Job(script=script.name, world_size=1, nproc_per_node=1, cluster=job.cluster)
            empty_seconds = median(measure(launcher, empty)[0] for _ in repeats)
    second, script = (median(column) for column in zip(*later, strict=True))
    figures = {
        "first_seconds": first,
        "second_seconds": second,
        "script_seconds": script,
        "overhead_seconds": median(whole - own for whole, own in later),
        "empty_seconds": empty_seconds,
        "ratio": second / first,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def measure(launcher: Launcher, job: Job) -> tuple[float, float]:
    """Launch once; return the time of the launch, and that of the script within it."""
    clock = Clock()
    start = time.perf_counter()
    launcher.launch(job, listen=clock)
    whole = time.perf_counter() - start
    print(f"{whole:.3f} s, of which the script {clock.seconds:.3f} s", file=sys.stderr)
    return whole, clock.seconds


def make_job(tp: int, pp: int, dp: int) -> Job:
    """Return the 124m GPT on a cluster just large enough."""
    world_size = tp * pp * dp
    per_node = min(8, world_size)
    flags = {"--size": "124m", "--tp": tp, "--pp": pp, "--dp": dp, "--global-batch": 8 * dp, "--micro-batch": 1}
    return Job(
        script=str(EXAMPLE),
        script_args=tuple(str(part) for flag in flags.items() for part in flag),
        world_size=world_size,
        nproc_per_node=per_node,
        cluster=load("dgx-a100", nodes=world_size // per_node),
        num_steps=2,
    )


if __name__ == "__main__":
    main()
