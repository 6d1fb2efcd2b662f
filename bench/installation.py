"""Measure how long a newcomer waits: the two commands of the README in a new virtual environment, with an empty cache.

    python bench/installation.py                            # an environment without torch: pip downloads it
    python bench/installation.py --with-torch torch==2.13.0 # one that already has torch
    python bench/installation.py --quick                    # dependencies of this environment, nothing is downloaded

pip takes packages from where it is configured to; PIP_INDEX_URL, for example, names another index. The last line is a
JSON object:

torch               the version and build that the rehearsal used
install_seconds     `pip install .`, with the download of torch if there was none
first_run_seconds   the first `sandtable run`, which compiles the virtual GPU
second_run_seconds  the same command again

and each of the three as `..._cpu_seconds`: what it computed, whatever else the machine was doing.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = re.compile(r"^```\n\$ (pip install \.)\n\$ (sandtable run .*)\n", flags=re.MULTILINE)
OFFLINE = "--no-index --no-build-isolation --no-deps --ignore-installed"
QUICK = (
    f"{sys.executable} -m pip --python $VIRTUAL_ENV install {OFFLINE} .",
    "sandtable run --steps 1 examples/gpt_ddp.py",
)


def main() -> None:
    """Make an environment, run the two commands in it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with-torch", metavar="REQUIREMENT", help="install this torch first, not timed")
    parser.add_argument("--quick", action="store_true", help="a small model, packages and cache of this environment")
    args = parser.parse_args()
    [commands] = COMMANDS.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        variables = make_environment(Path(folder), is_quick=args.quick)
        if args.with_torch:
            measure(f"pip install {args.with_torch}", variables)
        install, rehearse = QUICK if args.quick else commands
        rehearse = rehearse.replace("sandtable run", f"sandtable run --out {folder}/out")
        figures: dict[str, float] = {}
        for name, command in {"install": install, "first_run": rehearse, "second_run": rehearse}.items():
            figures[f"{name}_seconds"], figures[f"{name}_cpu_seconds"] = measure(command, variables)
        torch = installed_torch(variables)
    print(json.dumps({"torch": torch} | {name: round(seconds, 1) for name, seconds in figures.items()}))


def make_environment(folder: Path, *, is_quick: bool) -> dict[str, str]:
    """Make a virtual environment and return the variables that activate it."""
    flags = ["--without-pip"] if is_quick else []
    subprocess.run([sys.executable, "-m", "venv", *flags, folder / "environment"], check=True)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["VIRTUAL_ENV"] = str(folder / "environment")
    variables["PATH"] = os.pathsep.join([str(folder / "environment" / "bin"), variables["PATH"]])
    if is_quick:
        [packages] = (folder / "environment" / "lib").glob("python*/site-packages")
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    else:
        variables["SANDTABLE_CACHE"] = str(folder / "cache")
    return variables


def measure(command: str, variables: dict[str, str]) -> tuple[float, float]:
    """Run a command line and return its seconds, and those of all processors together."""
    start, start_cpu = time.perf_counter(), cpu_seconds()
    subprocess.run(command, shell=True, env=variables, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - start_cpu
    print(f"{seconds:6.1f} s, computing {cpu:6.1f} s  {command}", file=sys.stderr)
    return seconds, cpu


def cpu_seconds() -> float:
    """Return what the processes that this one started, and that have ended, have computed."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def installed_torch(variables: dict[str, str]) -> str:
    """Return what `sandtable doctor` says about torch."""
    command = ["sandtable", "doctor", "--json"]
    printed = subprocess.run(command, env=variables, cwd=ROOT, check=False, stdout=subprocess.PIPE).stdout
    [torch] = [component for component in json.loads(printed)["components"] if component["name"] == "torch"]
    return str(torch["found"])


if __name__ == "__main__":
    main()
