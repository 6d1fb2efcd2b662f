"""Rehearse examples on the builds of torch that people have: CPU and CUDA builds of four releases.

    python bench/environments.py
    python bench/environments.py --environments DIR --releases 2.13 2.15
    python bench/environments.py --quick

Makes a virtual environment for each build that pip finds with its configuration (CPU builds are versions that end in
"+cpu"), with Python 3.11, 3.12 and 3.13 in turn where they, and the build for them, exist. An environment in the
directory of --environments that already holds a build is used as it is. Builds that pip does not find are named and
left out. --quick takes the torch that is installed, and two examples.

Five examples run in every environment. The records of all ranks must be the same in the CPU and the CUDA build of a
release, and so must the step time. The last line is a JSON object:

environments      builds of torch that ran
examples          examples that ran in each
missing           builds that pip does not find
differing         examples whose digest or step time differs between the two builds of a release
builds            per build: the seconds to start the fork server and the memory it then takes (MiB); per example: the
                  digest of the records, the step time, the seconds it took
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandtable.vgpu import Launcher

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandtable-environments"
RELEASES = ("2.12", "2.13", "2.14", "2.15")
BUILDS = ("cpu", "cuda")
PYTHONS = ("python3.11", "python3.12", "python3.13")
EXAMPLES: dict[str, tuple[int, tuple[str, ...]]] = {  # by name: ranks and flags
    "gpt_ddp": (8, ()),
    "gpt_fsdp2": (8, ()),
    "gpt_tp": (4, ()),
    "gpt_pp": (4, ()),
    "gpt_3d": (8, ("--tp", "2", "--pp", "2")),
}
QUICK = ("gpt_ddp", "gpt_3d")
WORKER_FLAG = "--as-worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A build of torch and the Python that has it."""

    version: str
    python: str

    @property
    def kind(self) -> str:
        """Return "cpu" or "cuda"."""
        return "cpu" if self.version.endswith("+cpu") else "cuda"

    @property
    def release(self) -> str:
        """Return the release: 2.13 of 2.13.0+cpu."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one example did in one environment."""

    torch: str
    python: str
    example: str
    digest: str
    step_ms: float
    seconds: float


def main() -> None:
    """Run the examples everywhere, then print the table and the figures."""
    args = parse_arguments()
    if args.as_worker:
        print(json.dumps(work(args.as_worker)))
        return
    builds, missing = [Build(version="installed", python=sys.executable)], []
    if not args.quick:
        builds, missing = find_builds(args.environments, args.releases)
    examples = QUICK if args.quick else tuple(EXAMPLES)
    results = [run_worker(build, examples) for build in builds]
    rows = [Row(**row) for result in results for row in result["rows"]]
    print_table(results)
    figures = {
        "environments": len(builds),
        "examples": len(examples),
        "missing": missing,
        "differing": differing(rows),
        "builds": results,
    }
    print(json.dumps(figures))
    if figures["differing"]:
        sys.exit("the builds of a release must agree, but some examples differ: see `differing`")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=CACHE, help=f"where they are kept (default {CACHE})")
    parser.add_argument("--releases", nargs="+", default=RELEASES, help="releases of torch (default: all four)")
    parser.add_argument("--quick", action="store_true", help="only the installed torch, and two examples")
    parser.add_argument(WORKER_FLAG, nargs="+", metavar="EXAMPLE", help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- environments ----


def find_builds(directory: Path, releases: list[str]) -> tuple[list[Build], list[str]]:
    """Return a build for each release and kind, made if necessary, and the names of those that pip does not find."""
    present = [build for folder in sorted(directory.glob("*")) if (build := build_in(folder))]
    offered = versions_of_torch()
    pythons = [python for python in PYTHONS if runs(python)] or [sys.executable]
    builds, missing = [], []
    for number, (release, kind) in enumerate((release, kind) for release in releases for kind in BUILDS):
        found = [build for build in present if (build.release, build.kind) == (release, kind)]
        version = newest(offered, release, kind)
        if found:
            builds.append(found[0])
        elif version is None:
            missing.append(f"{release} {kind}")
            print(f"torch {release}, {kind} build: pip does not find one; left out", file=sys.stderr)
        else:
            first = number % len(pythons)
            builds.append(make_environment(directory, version, [*pythons[first:], *pythons[:first]]))
    return builds, missing


def build_in(folder: Path) -> Build | None:
    """Return the build of torch in this environment, if it is one and has torch."""
    for file in folder.glob("lib/python3*/site-packages/torch/version.py"):
        version = re.search(r"__version__ *= *['\"]([^'\"]+)", file.read_text())
        if version and (folder / "bin" / "python").exists():
            return Build(version=version[1], python=str(folder / "bin" / "python"))
    return None


def versions_of_torch() -> list[str]:
    """Return the versions of torch that pip finds with its configuration, newest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Available versions: (.*)", done.stdout)
    return [version.strip() for version in found[1].split(",")] if found else []


def newest(versions: list[str], release: str, kind: str) -> str | None:
    """Return the newest version of this release and kind."""
    suffix = "+cpu" if kind == "cpu" else ""
    pattern = re.compile(rf"{re.escape(release)}\.\d+{re.escape(suffix)}")
    return next((version for version in versions if pattern.fullmatch(version)), None)


def runs(python: str) -> bool:
    """Return whether this interpreter is installed and can make environments."""
    return (
        shutil.which(python) is not None
        and not subprocess.run([python, "-c", "import venv"], capture_output=True).returncode
    )


def make_environment(directory: Path, version: str, pythons: list[str]) -> Build:
    """Install this version of torch, and sandtable, into a new environment of the first Python that it is built for."""
    folder = directory / f"torch-{version}"
    # "===" takes this version to the letter: "==2.13.0" would also accept 2.13.0+cpu.
    packages = [f"torch==={version}", str(ROOT)]
    for python in pythons:
        print(f"making {folder} with {python}", file=sys.stderr)
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        own = str(folder / "bin" / "python")
        subprocess.run([own, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *packages], check=False)
        build = build_in(folder)
        if build is not None:
            return build
    sys.exit(f"torch {version} must be installable, but pip could not with {', '.join(pythons)}: see above")


# ---- running ----


def run_worker(build: Build, examples: tuple[str, ...]) -> dict[str, Any]:
    """Run the examples in this environment, with the sources of this tree."""
    print(f"torch {build.version} of {build.python}", file=sys.stderr)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [build.python, __file__, WORKER_FLAG, *examples]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    if done.returncode:
        sys.exit(f"torch {build.version} of {build.python} must run {', '.join(examples)}, but did not: see above")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def work(examples: list[str]) -> dict[str, Any]:
    """Rehearse the examples with the torch of this process's environment."""
    from sandtable.cluster import load
    from sandtable.vgpu import Job, Launcher, core_path
    from sandtable.vgpu.compatibility import installed_torch

    core_path()  # if need be, the library is built here, outside the measured time
    with Launcher() as launcher, tempfile.NamedTemporaryFile(suffix=".py") as empty:
        start = time.perf_counter()
        job = Job(script=empty.name, world_size=1, nproc_per_node=1, cluster=load("dgx-a100", nodes=1))
        memory = launcher.launch(job).peak_rss_bytes
        start_seconds = time.perf_counter() - start
        rows = [asdict(rehearse(example, launcher, installed_torch())) for example in examples]
    return {
        "torch": installed_torch(),
        "start_seconds": round(start_seconds, 2),
        "start_mib": memory >> 20,
        "rows": rows,
    }


def rehearse(example: str, launcher: "Launcher", version: str) -> Row:
    """Rehearse one example; the digest is over the records of all classes of ranks."""
    import sandtable

    ranks, flags = EXAMPLES[example]
    start = time.perf_counter()
    options = sandtable.LaunchOptions(ranks_per_node=ranks, launcher=launcher)
    run = sandtable.rehearse(
        str(ROOT / "examples" / f"{example}.py"), *flags, cluster="dgx-a100", nodes=1, steps=2, options=options
    )
    parts = sorted(f"{rank_class.ranks} {rank_class.digest}" for rank_class in run.trace.classes)
    return Row(
        torch=version,
        python=".".join(map(str, sys.version_info[:2])),
        example=example,
        digest=hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16],
        step_ms=run.step_seconds * 1000,
        seconds=round(time.perf_counter() - start, 2),
    )


# ---- results ----


def differing(rows: list[Row]) -> list[str]:
    """Return the examples whose records or step time are not the same in all builds of a release."""
    seen: dict[tuple[str, str], set[tuple[str, float]]] = {}
    for row in rows:
        release = ".".join(row.torch.split(".")[:2])
        seen.setdefault((release, row.example), set()).add((row.digest, row.step_ms))
    return [f"{example} on {release}" for (release, example), results in seen.items() if len(results) > 1]


def print_table(results: list[dict[str, Any]]) -> None:
    """Print one line per build and example."""
    print(f"{'torch':<16}{'python':<8}{'example':<12}{'digest':<18}{'step':>10}{'took':>9}")
    for result in results:
        for row in result["rows"]:
            print(
                f"{row['torch']:<16}{row['python']:<8}{row['example']:<12}{row['digest']:<18}"
                f"{row['step_ms']:>7.3f} ms{row['seconds']:>7.1f} s"
            )


if __name__ == "__main__":
    main()
