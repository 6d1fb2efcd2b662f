"""A launch command is read, not executed: its first words select the launcher."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from tests.launch.places import variables_of, world_of

from sandtable.errors import LaunchError
from sandtable.launch import is_launch_command, parse_command


@pytest.mark.parametrize(
    ("command", "launcher", "script", "arguments"),
    [
        ("torchrun train.py -m x", "torchrun", "train.py", ("-m", "x")),
        ("/opt/venv/bin/torchrun --standalone train.py", "torchrun", "train.py", ()),
        ("python -m torch.distributed.run train.py", "torchrun", "train.py", ()),
        ("python3.12 -u -X importtime -m torch.distributed.launch train.py", "torchrun", "train.py", ()),
        ("accelerate launch --num_processes 4 train.py --lr 1", "accelerate launch", "train.py", ("--lr", "1")),
        ("accelerate-launch --num-processes=4 train.py", "accelerate launch", "train.py", ()),
        ("python -m accelerate.commands.launch train.py", "accelerate launch", "train.py", ()),
        ("python -m accelerate launch train.py", "accelerate launch", "train.py", ()),
        ("deepspeed train.py --deepspeed", "deepspeed", "train.py", ("--deepspeed",)),
        ("python -m deepspeed.launcher.runner train.py", "deepspeed", "train.py", ()),
        ("srun -N2 torchrun --nnodes 2 train.py", "torchrun", "train.py", ()),
        ("srun --ntasks 4 python train.py", "srun", "train.py", ()),
        ("mpirun -np 4 --mca btl tcp,self python train.py --mca", "mpirun", "train.py", ("--mca",)),
        ("python train.py --m 3", "python", "train.py", ("--m", "3")),
        ("python -W ignore -u train.py", "python", "train.py", ()),
        ("env A=1 nohup python train.py", "python", "train.py", ()),
        ("A=1 B=2 torchrun train.py", "torchrun", "train.py", ()),
        ("numactl --cpunodebind 0 -l torchrun train.py", "torchrun", "train.py", ()),
        ("taskset -c 0-15 nice -n 5 A=1 python train.py", "python", "train.py", ()),
        ("timeout 3600 deepspeed train.py", "deepspeed", "train.py", ()),
        ("fabric run --devices 4 --strategy ddp train.py --lr 1", "fabric run", "train.py", ("--lr", "1")),
        ("lightning run model --devices=8 train.py --devices 8 --lr 1", "fabric run", "train.py", ("--lr", "1")),
        ("uv run torchrun train.py", "torchrun", "train.py", ()),
        ("uv run -- train.py --x", "python", "train.py", ("--x",)),
        ("poetry run python train.py", "python", "train.py", ()),
    ],
)
def test_the_first_words_select_the_launcher(
    command: str, launcher: str, script: str, arguments: tuple[str, ...]
) -> None:
    words = shlex.split(command)
    plan = parse_command(words, {"HF_HOME": "/nowhere"})
    assert (plan.launcher, plan.script, plan.script_args, plan.is_module) == (launcher, script, arguments, False)
    assert is_launch_command(words[0])


@pytest.mark.parametrize("command", ["python -m pkg.train --x", "python -mpkg.train --x"])
def test_python_runs_a_module_as_one_process_without_variables(command: str) -> None:
    plan = parse_command(shlex.split(command), {})
    assert (plan.script, plan.script_args, plan.is_module) == ("pkg.train", ("--x",), True)
    assert world_of(plan) == (1, 1)
    assert variables_of(plan, 0) == {}


def test_variables_before_a_command_reach_every_rank_and_the_launcher() -> None:
    plan = parse_command(["PET_NPROC_PER_NODE=4", "NCCL_DEBUG=INFO", "torchrun", "train.py"], {})
    assert world_of(plan) == (1, 4)
    assert variables_of(plan, 3)["NCCL_DEBUG"] == "INFO"


def test_visible_devices_before_a_command_count_as_its_gpus() -> None:
    words = ["CUDA_VISIBLE_DEVICES=0,2,3"]
    for command in ("torchrun --nproc-per-node gpu train.py", "accelerate launch train.py", "deepspeed train.py"):
        plan = parse_command([*words, *command.split()], {"HF_HOME": "/nowhere"})
        assert world_of(plan) == (1, 3)
        assert variables_of(plan, 0)["CUDA_VISIBLE_DEVICES"] == "0,2,3"


def test_visible_devices_of_this_machine_say_nothing_about_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert world_of(parse_command(["torchrun", "--nproc-per-node", "gpu", "train.py"])) == (1, 8)


@pytest.mark.parametrize("word", ["train.py", "dir/train.py", "notebook.ipynb", "train", "A=b.py", "./pkg"])
def test_a_script_is_not_a_command(word: str) -> None:
    assert not is_launch_command(word)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "must follow"),
        ("bash train.sh", "'bash' runs a shell script; put `sandtable run --`"),
        ("./train.sh 8", "runs a shell script"),
        ("jsrun -n 4 python train.py", "but got 'jsrun -n'"),
        ("env -i python train.py", "but got 'env -i'"),
        ("numactl --cpunodebind 0 ./train", "must follow, but there is none"),
        ("uv sync", "but got 'uv sync'"),
        ("conda run -n training torchrun train.py", "the options of conda run must be left out, but got '-n'"),
        ("fabric consolidate checkpoint", "only `fabric run`"),
        ("fabric run --accelerator cpu train.py", "--accelerator must be cuda or gpu or auto, but got cpu"),
        ("fabric run train.py --devices 4", "put it before the script"),
        ("fabric run --devices 2 train.py --devices=4", "put it before the script"),
        ("lightning run app app.py", "only `lightning run model`"),
        ("fabric run --devices some train.py", "fabric run --devices must be a number"),
        ("uv run --with torch train.py", "but got '--with'"),
        ("python", "must be given a script"),
        ("python -c pass", "but got '-c pass'"),
        ("python -m", "must be given a script or -m and a module"),
        ("accelerate config", "only `accelerate launch`"),
        ("torchrun --nproc-per-node", "must have a value and a script must follow"),
        ("torchrun --nproc-per-node 8 --standalone", "but the command ends"),
        ("torchrun --nprocs 8 train.py", "but got '--nprocs'"),
        ("torchrun --standalone=1 train.py", "must stand alone"),
        ("torchrun --no-python ./train", "cannot be rehearsed"),
        ("torchrun --nnodes 0 train.py", "--nnodes must be a number"),
        ("deepspeed --num-gpus 8 train.py", "but got '--num-gpus'"),
        ("accelerate launch --num_proc 8 train.py", "but got '--num_proc'"),
        ("accelerate launch --num_processes many train.py", "--num_processes must be a number"),
        ("accelerate launch --cpu train.py", "--cpu cannot be rehearsed"),
        ("srun --nodes two python train.py", "srun --nodes must be a number"),
        ("mpirun -np x python train.py", "mpirun --np must be a number"),
    ],
)
def test_what_cannot_be_read_is_named_with_a_remedy(command: str, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse_command(shlex.split(command), {"HF_HOME": "/nowhere"})
    assert message in str(caught.value)
    assert ";" in str(caught.value) or ":" in str(caught.value)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the PATH with a command of a Python package, and one of another kind."""
    for name, text in (("litgpt", f"#!{sys.executable}\nprint(1)\n"), ("other", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_command_of_a_python_package_is_its_script(installed: Path) -> None:
    plan = parse_command(["litgpt", "pretrain", "--devices", "8"])
    assert (plan.script, plan.script_args, plan.is_plain) == (
        str(installed / "litgpt"),
        ("pretrain", "--devices", "8"),
        True,
    )
    assert is_launch_command("litgpt")
    assert not is_launch_command("other")
    with pytest.raises(LaunchError, match="a command that a Python package has installed"):
        parse_command(["other", "train"])
