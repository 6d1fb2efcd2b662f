"""Measure what shared imports save: a script's libraries are imported for the first rank, and once for all others.

    python bench/imports.py
    python bench/imports.py --ranks 16 transformers accelerate
    python bench/imports.py --quick

Captures all ranks of a small DDP training that imports the given libraries, with and without shared imports. Without
names it makes a library whose import takes two seconds of computing. The last line is a JSON object:

import_seconds    time to import the libraries once, in a process that has torch
shared_seconds    wall-clock time of the capture with shared imports
unshared_seconds  the same without
speedup           unshared_seconds / shared_seconds
shared_mib        peak memory of the capture with shared imports
unshared_mib      the same without
are_equal         whether every rank's records are the same
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

from sandtable.cluster import load
from sandtable.trace import Trace
from sandtable.vgpu import Job, Launcher

SLOW = """
import time
end = time.process_time() + {seconds}
while time.process_time() < end:
    pass
"""
SCRIPT = """
import os
{imports}
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
optimizer = torch.optim.AdamW(model.parameters())
while True:
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def main() -> None:
    """Capture twice, then print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", help="names of installed modules (default: a made one)")
    parser.add_argument("--ranks", type=int, default=16, help="ranks, all of which run (default 16)")
    parser.add_argument("--quick", action="store_true", help="4 ranks, and a library that takes half a second")
    args = parser.parse_args()
    missing = [name for name in args.libraries if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"libraries must be installed, but {', '.join(missing)} is not; pip install it")
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(Path(folder), args.libraries, num_ranks=4 if args.quick else args.ranks, is_quick=args.quick)
        import_seconds = measure_imports(Path(folder), args.libraries or ["library"])
        with Launcher() as launcher:
            launcher.launch(replace(job, ranks=(0,)))  # loads torch, outside the measured time
            shared_seconds, shared = measure(launcher, job)
            unshared_seconds, unshared = measure(launcher, replace(job, share_imports=False))
    figures = {
        "import_seconds": round(import_seconds, 2),
        "shared_seconds": round(shared_seconds, 2),
        "unshared_seconds": round(unshared_seconds, 2),
        "speedup": round(unshared_seconds / shared_seconds, 2),
        "shared_mib": shared.run.peak_rss_bytes >> 20,
        "unshared_mib": unshared.run.peak_rss_bytes >> 20,
        "are_equal": digests(shared) == digests(unshared),
    }
    print(json.dumps(figures))


def make_job(folder: Path, libraries: list[str], *, num_ranks: int, is_quick: bool) -> Job:
    """Write the script, and the library if none is given."""
    (folder / "library.py").write_text(SLOW.format(seconds=0.5 if is_quick else 2))
    script = folder / "train.py"
    imports = "\n".join(f"import {name}" for name in libraries or ["library"])
    script.write_text(textwrap.dedent(SCRIPT).format(imports=imports))
    return Job(
        script=str(script),
        world_size=num_ranks,
        nproc_per_node=num_ranks,
        cluster=load("dgx2-v100", nodes=1),
        num_steps=2,
        ranks="all",
    )


def measure_imports(folder: Path, libraries: list[str]) -> float:
    """Return the seconds that importing the libraries takes after torch."""
    code = (
        "import time, torch, torch.distributed.fsdp, torch._dynamo; start = time.perf_counter(); "
        f"import {', '.join(libraries)}; print(time.perf_counter() - start)"
    )
    printed = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return float(printed.stdout.split()[-1])


def measure(launcher: Launcher, job: Job) -> tuple[float, Trace]:
    """Capture the job; return how long it took, and the trace."""
    start = time.perf_counter()
    trace = launcher.launch(job)
    return time.perf_counter() - start, trace


def digests(trace: Trace) -> list[str]:
    """Return a digest of what each rank recorded."""
    return [trace.rank(rank).digest() for rank in range(trace.world_size)]


if __name__ == "__main__":
    main()
