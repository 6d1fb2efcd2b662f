"""Rehearse the same training from a dozen launch commands, each as it is typed on a cluster.

    python bench/launch_commands.py
    python bench/launch_commands.py --quick

Commands of one group start the same ranks in different ways; the first of a group is the direct form. All must give its
summary: the same classes, calls, memory and times, to the last digit. Groups that need Accelerate or DeepSpeed are
skipped where those are not installed; their launchers never need to be. The last line is a JSON object:

commands     how many commands were rehearsed
same         how many gave the summary of their group's direct form, itself included
differing    the commands that gave another summary, or failed
missing      packages whose groups were not rehearsed, and how to install them
rows         command, nodes, ranks, steps, milliseconds per step and exit code of each
"""

import argparse
import importlib.util
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandtable import Launcher, LaunchOptions, Rehearsal, SandtableError, rehearse, rehearse_command
from sandtable.vgpu import core_path

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = 3

ADAPTER = """import os, runpy, sys

# What scripts for {launcher} do: tell torch.distributed its place in the variables that it reads.
os.environ.update(
    RANK=os.environ["{rank}"],
    LOCAL_RANK=os.environ["{local_rank}"],
    WORLD_SIZE=os.environ["{world_size}"],
    MASTER_ADDR="node0",
    MASTER_PORT="29500",
)
sys.argv[0] = {script!r}
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

CELLS = (
    "!nvidia-smi",
    "import torch\nmodel = torch.nn.Linear(1024, 1024).cuda()\noptimizer = torch.optim.AdamW(model.parameters())",
    "%%time\nfor _ in range(5):\n    model(torch.rand(64, 1024, device='cuda')).sum().backward()\n"
    "    optimizer.step()\n    optimizer.zero_grad()",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Commands that start the same ranks.

    `script` is that of the direct form, `size` that of its model, if it has one to choose. `ranks_per_node` is None for
    the direct form's own choice; `package` must be installed.
    """

    script: str
    size: str = ""
    num_nodes: int
    ranks_per_node: int | None
    commands: tuple[str, ...]
    package: str = "torch"


def main() -> None:
    """Rehearse all groups, then print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two nodes of two GPUs, and every third command")
    args = parser.parse_args()
    core_path()
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="sandtable-bench-") as directory, Launcher() as launcher:
        os.environ["HF_HOME"] = directory  # no configuration of the user's changes what `accelerate launch` does
        for group in groups(Path(directory), gpus=2 if args.quick else 8, size="tiny" if args.quick else "124m"):
            if importlib.util.find_spec(group.package) is None:
                missing[group.package] = f"pip install {group.package}"
                continue
            rows += measure(group, launcher, every=3 if args.quick else 1)
    differing = [row["command"] for row in rows if not row.pop("is_same")]
    print(
        json.dumps(
            {
                "commands": len(rows),
                "same": len(rows) - len(differing),
                "differing": differing,
                "missing": missing,
                "rows": rows,
            }
        )
    )


def groups(directory: Path, *, gpus: int, size: str) -> Iterator[Group]:
    """Yield the groups, with the files that their commands name written to `directory`."""
    ranks, flags = 2 * gpus, f"--size {size}"
    script = str(EXAMPLES / "gpt_ddp.py")
    ddp = f"{script} {flags}"
    hosts, config = directory / "hosts", directory / "config.yaml"
    hosts.write_text(f"worker-0 slots={gpus}\nworker-1 slots={gpus}\n", encoding="utf-8")
    config.write_text(
        f"distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: {ranks}\nmain_process_ip: worker-0\n",
        encoding="utf-8",
    )
    slurm = adapter(directory, "slurm", ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"))
    variables = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")
    mpi = adapter(directory, "mpi", variables)
    torchrun = f"torchrun --nnodes 2 --nproc-per-node {gpus}"
    yield Group(
        script=script,
        size=size,
        num_nodes=2,
        ranks_per_node=gpus,
        commands=(
            f"{torchrun} {ddp}",
            f"{torchrun} --rdzv-backend c10d --rdzv-endpoint worker-0:29400 --rdzv-id 7 {ddp}",
            f"python -m torch.distributed.run --nnodes=2 --nproc_per_node={gpus} --node_rank 0 {ddp}",
            f"python -m torch.distributed.launch --use-env --nnodes 2 --nproc_per_node {gpus} {ddp}",
            f"env NCCL_DEBUG=INFO uv run {torchrun} {ddp}",
            f"srun --nodes 2 --ntasks-per-node 1 --gpus-per-node {gpus} {torchrun} {ddp}",
            f"srun -N2 --ntasks-per-node {gpus} python {slurm} {flags}",
            f"mpirun -np {ranks} -npernode {gpus} -x NCCL_DEBUG=INFO python {mpi} {flags}",
            f"accelerate launch --multi_gpu --num_machines 2 --num_processes {ranks} {ddp}",
            f"accelerate launch --config_file {config} {ddp}",
            f"deepspeed --hostfile {hosts} --no_local_rank {ddp}",
            f"numactl --cpunodebind 0 fabric run --devices {gpus} --num-nodes 2 {ddp}",
        ),
    )
    notebook = write_notebook(directory / "train.ipynb")
    yield Group(script=notebook, num_nodes=1, ranks_per_node=None, commands=(f"python {notebook}",))
    script = str(EXAMPLES / "gpt_accelerate.py")
    yield Group(
        script=script,
        size=size,
        num_nodes=1,
        ranks_per_node=gpus,
        commands=(
            f"accelerate launch {script} {flags}",
            f"accelerate launch --multi_gpu --num_processes {gpus} {script} {flags}",
        ),
        package="accelerate",
    )
    script = str(EXAMPLES / "gpt_deepspeed.py")
    yield Group(
        script=script,
        size=size,
        num_nodes=1,
        ranks_per_node=gpus,
        commands=(f"deepspeed --num_gpus {gpus} {script} {flags}",),
        package="deepspeed",
    )


def adapter(directory: Path, launcher: str, variables: tuple[str, str, str]) -> Path:
    """Write a script that starts examples/gpt_ddp.py from another launcher's variables."""
    rank, local_rank, world_size = variables
    path = directory / f"{launcher}.py"
    script = str(EXAMPLES / "gpt_ddp.py")
    text = ADAPTER.format(launcher=launcher, rank=rank, local_rank=local_rank, world_size=world_size, script=script)
    path.write_text(text, encoding="utf-8")
    return path


def write_notebook(path: Path) -> str:
    """Write a notebook that trains one layer."""
    cells = [{"cell_type": "code", "source": text, "metadata": {}, "outputs": []} for text in CELLS]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    return str(path)


def measure(group: Group, launcher: Launcher, *, every: int) -> Iterator[dict[str, Any]]:
    """Rehearse the direct form and every so many of the commands."""
    options = LaunchOptions(ranks_per_node=group.ranks_per_node, launcher=launcher)
    flags = ("--size", group.size) if group.size else ()
    direct = rehearse(group.script, *flags, nodes=group.num_nodes, steps=STEPS, options=options)
    numbers = (
        "" if group.ranks_per_node is None else f"--nnodes {group.num_nodes} --nproc-per-node {group.ranks_per_node}"
    )
    yield row(" ".join(["sandtable run", *numbers.split(), group.script, *flags]), direct, direct)
    for command in group.commands[::every]:
        try:
            run = rehearse_command(shlex.split(command), steps=STEPS, options=LaunchOptions(launcher=launcher))
        except SandtableError as error:
            print(f"{command}: {error}", file=sys.stderr)
            yield {"command": short(command), "exit_code": error.exit_code, "is_same": False}
        else:
            yield row(command, run, direct)


def row(command: str, run: Rehearsal, direct: Rehearsal) -> dict[str, Any]:
    """Return the figures of a run, and whether they are those of the direct form."""
    figures = {
        "command": short(command),
        "nodes": run.summary.cluster.num_nodes,
        "ranks": run.summary.world_size,
        "steps": run.trace.num_steps,
        "step_ms": round(run.step_seconds * 1e3, 6) if run.has_time else None,
        "exit_code": 0 if run.error is None else run.error.exit_code,
    }
    print("  ".join(f"{name} {value}" for name, value in figures.items()), file=sys.stderr)
    return {**figures, "is_same": run.error is None and summary_of(run) == summary_of(direct)}


def summary_of(run: Rehearsal) -> dict[str, object]:
    """Return all of the summary that does not depend on how the ranks were started, or how long that took."""
    summary = run.summary.to_dict()
    capture = dict(run.summary.capture.to_dict())
    for name in ("command", "effort", "capture"):
        summary.pop(name, None)
    for name in ("wall_seconds", "core_seconds", "peak_rss_bytes", "notes", "command"):
        capture.pop(name, None)
    return summary | {"capture": capture}


def short(command: str) -> str:
    """Return the command without directories, as one would type it."""
    return " ".join(Path(word).name if "/" in word and "=" not in word else word for word in command.split())


if __name__ == "__main__":
    main()
