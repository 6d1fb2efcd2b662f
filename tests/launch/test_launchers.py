"""Nodes, ranks and variables of each launcher's options and files."""

import base64
import json
from pathlib import Path

import pytest
from tests.launch.places import PORT, place_of, variables_of, world_of

from sandtable.errors import LaunchError
from sandtable.launch import LaunchPlan, parse_command

# ---- torchrun ----


def read(command: str, **variables: str) -> LaunchPlan:
    return parse_command(command.split(), {"HF_HOME": "/nowhere"} | variables)


@pytest.mark.parametrize(
    ("options", "world"),
    [
        ("", (1, 1)),
        ("--nproc-per-node 4", (1, 4)),
        ("--nproc_per_node=gpu", (1, 8)),
        ("--nproc auto --nnodes 3", (3, 8)),
        ("--nnodes 2:4 --nproc-per-node 8 --rdzv-backend c10d --rdzv_endpoint head:29400 --node-rank 1", (4, 8)),
        ("--nnodes=2 --nproc-per-node=2 -t 3 -r 3 --max-restarts 3 --rdzv-id job", (2, 2)),
    ],
)
def test_torchruns_numbers(options: str, world: tuple[int, int]) -> None:
    assert world_of(read(f"torchrun {options} train.py")) == world


@pytest.mark.parametrize(
    ("options", "world"),
    [
        ("", (1, 1)),
        ("--devices 4", (1, 4)),
        ("--devices=auto --num-nodes 2", (2, 1)),
        ("--devices -1 --num_nodes 2", (2, 8)),
        ("--devices 0,2,", (1, 2)),
        ("--devices 4 --strategy dp", (1, 1)),
    ],
)
def test_fabrics_numbers(options: str, world: tuple[int, int]) -> None:
    assert world_of(read(f"fabric run {options} train.py")) == world


@pytest.mark.parametrize(
    ("options", "world"),
    [
        ("", (1, 8)),
        ("-n 4", (1, 4)),
        ("--nproc 2 -v --stdout out-{rank}", (1, 2)),
        ("-n8 --world_size 32 --node_rank 0 --master_addr head --master_port 7501", (4, 8)),
    ],
)
def test_composers_numbers(options: str, world: tuple[int, int]) -> None:
    assert world_of(read(f"composer {options} train.py config.yaml")) == world


def test_composers_ranks_find_the_number_of_their_node() -> None:
    plan = read("composer -n 2 --world_size 4 -m package.train a=1")
    variables = variables_of(plan, 3)
    assert (plan.script, plan.is_module, plan.script_args) == ("package.train", True, ("a=1",))
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["NODE_RANK"]) == ("3", "1", "1")
    assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]) == ("4", "2")
    with pytest.raises(LaunchError, match="name the script itself"):
        read("composer -c -n 2 train")


@pytest.mark.parametrize(
    "launcher", ["torchrun", "accelerate launch", "deepspeed", "python -m torch.distributed.run", "composer"]
)
def test_dashes_between_script_and_arguments_are_the_launchers(launcher: str) -> None:
    assert read(f"{launcher} train.py -- --depth 12 -- x").script_args == ("--depth", "12", "--", "x")


def test_fabrics_ranks_find_its_options_and_torchruns_variables() -> None:
    plan = read("fabric run --accelerator cuda --devices 2 --precision bf16-mixed train.py")
    variables = variables_of(plan, 1)
    assert {name: value for name, value in variables.items() if name.startswith("LT_")} == {
        "LT_CLI_USED": "1",
        "LT_ACCELERATOR": "cuda",
        "LT_DEVICES": "2",
        "LT_NUM_NODES": "1",
        "LT_PRECISION": "bf16-mixed",
    }
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["WORLD_SIZE"]) == ("1", "1", "2")


def test_the_old_launch_module_passes_the_local_rank() -> None:
    plan = read("python -m torch.distributed.launch --nproc_per_node 4 train.py --x")
    assert plan.environment.leading_args(place_of(plan, 3)) == ("--local-rank=3",)
    plan = read("python -m torch.distributed.launch --use-env --nproc_per_node 4 train.py")
    assert plan.environment.leading_args(place_of(plan, 3)) == ()


# ---- srun and mpirun ----


@pytest.mark.parametrize(
    ("command", "world"),
    [
        ("srun --nodes 4 --ntasks-per-node 8 python train.py", (4, 8)),
        ("srun -N 4 -n 16 python train.py", (4, 4)),
        ("srun -n16 python train.py", (2, 8)),
        ("srun --ntasks=4 python train.py", (1, 4)),
        ("srun --gpus-per-node=a100:4 --ntasks-per-gpu 1 -N2 python train.py", (2, 4)),
        ("srun --ntasks-per-node 8 python train.py", (3, 8)),
        ("srun -N2 -l --exclusive --kill-on-bad-exit=1 torchrun --nnodes 2 --nproc-per-node 8 train.py", (2, 8)),
        ("srun torchrun --nnodes 2 --nproc-per-node 8 train.py", (2, 8)),
        ("srun -N2 --ntasks-per-node 1 accelerate launch --num_machines 2 --num_processes 8 t.py", (2, 4)),
        ("mpirun -np 16 python train.py", (2, 8)),
        ("mpirun -np 16 -npernode 4 python train.py", (4, 4)),
        ("mpirun --np 8 --map-by ppr:2:node python train.py", (4, 2)),
        ("mpirun --host a:4,b:4 -x A=b --allow-run-as-root python train.py", (2, 4)),
        ("mpirun -np 2 torchrun --nnodes 2 --nproc-per-node 8 train.py", (2, 8)),
    ],
)
def test_numbers_of_launchers_around_a_command(command: str, world: tuple[int, int]) -> None:
    assert world_of(read(command), nodes=3) == world


def test_tasks_of_srun_are_ranks_without_torchruns_variables() -> None:
    plan = read("srun --nodes 4 --ntasks-per-node 8 --export=ALL,A=b --cpus-per-task 6 --job-name big python train.py")
    variables = variables_of(plan, 19)
    assert not variables.keys() & {"RANK", "WORLD_SIZE", "MASTER_ADDR"}
    expected = {
        "SLURM_PROCID": "19",
        "SLURM_LOCALID": "3",
        "SLURM_NODEID": "2",
        "SLURM_NTASKS": "32",
        "SLURM_NNODES": "4",
        "SLURM_NTASKS_PER_NODE": "8",
        "SLURM_TASKS_PER_NODE": "8(x4)",
        "SLURM_GTIDS": "16,17,18,19,20,21,22,23",
        "SLURM_JOB_NODELIST": "node[0-3]",
        "SLURMD_NODENAME": "node2",
        "SLURM_CPUS_PER_TASK": "6",
        "SLURM_JOB_NAME": "big",
        "A": "b",
    }
    assert variables.items() >= expected.items()


def test_a_torchrun_of_srun_is_one_task_and_its_ranks_have_both_environments() -> None:
    variables = variables_of(read("srun --nodes 4 torchrun --nnodes 4 --nproc-per-node 8 train.py"), 19)
    assert (variables["SLURM_PROCID"], variables["SLURM_NTASKS"], variables["SLURM_LOCALID"]) == ("2", "4", "0")
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["GROUP_RANK"]) == ("19", "3", "2")


def test_processes_of_mpirun_have_open_mpis_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    variables = variables_of(read("mpirun -np 16 -npernode 8 -x A=b -x NCCL_DEBUG -x MISSING python train.py"), 11)
    assert {name.removeprefix("OMPI_COMM_WORLD_"): value for name, value in variables.items()} == {
        "RANK": "11",
        "SIZE": "16",
        "LOCAL_RANK": "3",
        "LOCAL_SIZE": "8",
        "NODE_RANK": "3",
        "OMPI_UNIVERSE_SIZE": "16",
        "PMIX_RANK": "11",
        "A": "b",
        "NCCL_DEBUG": "INFO",
    }


def test_launchers_inside_each_other_must_agree() -> None:
    with pytest.raises(LaunchError, match="says 2 where srun says 4; make the two agree"):
        read("srun --nodes 4 torchrun --nnodes 2 train.py")
    with pytest.raises(LaunchError, match="once per node, but starts it 8 times"):
        read("srun --nodes 4 --ntasks-per-node 8 torchrun --nnodes 4 train.py")


def test_ranks_must_spread_evenly_over_the_nodes() -> None:
    with pytest.raises(LaunchError, match="starts 10 on 4 nodes"):
        world_of(read("srun -N 4 -n 10 python train.py"))
    with pytest.raises(LaunchError, match="starts 12 on 1 nodes with 8 GPUs each"):
        world_of(read("mpirun -np 12 python train.py"))


# ---- deepspeed ----

HOSTS = "# rack 1\nworker-0 slots=4\nworker-1 slots=4\n\nworker-2 slots=4\n"


@pytest.fixture
def hosts(tmp_path: Path) -> str:
    path = tmp_path / "hostfile"
    path.write_text(HOSTS, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("options", "world", "gpus"),
    [
        ("", (3, 4), "0,1,2,3"),
        ("--num_nodes 2", (2, 4), "0,1,2,3"),
        ("--num_gpus 2", (3, 2), "0,1"),
        ("--include worker-1@worker-0", (2, 4), "0,1,2,3"),
        ("-i worker-0:1,3@worker-2:0,2", (2, 2), "1,3"),
        ("--exclude worker-1", (2, 4), "0,1,2,3"),
        ("-e worker-0:0@worker-1:0@worker-2:0", (3, 3), "1,2,3"),
    ],
)
def test_hosts_of_deepspeed(hosts: str, options: str, world: tuple[int, int], gpus: str) -> None:
    plan = read(f"deepspeed --hostfile {hosts} {options} train.py")
    assert world_of(plan) == world
    assert variables_of(plan, 0)["CUDA_VISIBLE_DEVICES"] == gpus


def test_ranks_of_deepspeed_have_its_variables_and_an_argument(hosts: str) -> None:
    plan = read("deepspeed --num_gpus 4 train.py --deepspeed", CUDA_VISIBLE_DEVICES="7")
    assert variables_of(plan, 3) == {
        "RANK": "3",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_SIZE": "4",
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(PORT),
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    }
    assert plan.environment.leading_args(place_of(plan, 3)) == ("--local_rank=3",)
    silent = read("deepspeed --no_local_rank --num_gpus 4 train.py")
    assert silent.environment.leading_args(place_of(silent, 3)) == ()
    remote = variables_of(read(f"deepspeed -H {hosts} train.py"), 9)
    assert (remote["CROSS_RANK"], remote["CROSS_SIZE"], remote["RANK"]) == ("2", "3", "9")
    assert remote["PYTHONPATH"].startswith(str(Path.cwd()))


def test_variables_in_deepspeeds_file_reach_remote_ranks(
    hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".deepspeed_env").write_text("NCCL_DEBUG=INFO\nFLAGS=a=b\n", encoding="utf-8")
    variables = variables_of(read(f"deepspeed -H {hosts} train.py"), 0)
    assert (variables["NCCL_DEBUG"], variables["FLAGS"]) == ("INFO", "a=b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--hostfile nowhere", "'nowhere' does not exist"),
        ("--num_nodes 2", "must be 1 without a hostfile"),
        ("--include a --num_gpus 2", "without --num_nodes"),
        ("--include a --exclude b", "but got both"),
        ("--include elsewhere:0", "the hosts are localhost"),
        ("-H {hosts} --include worker-0@worker-7", "but got 'worker-7'"),
        ("-H {hosts} --include worker-0:9", "but got 'worker-0:9'"),
        ("-H {hosts} --exclude worker-0:1", "worker-0: 3, worker-1: 4"),
        ("--launcher openmpi", "must be pdsh"),
        ("--autotuning run", "it runs many trainings"),
    ],
)
def test_hosts_that_cannot_be_used(hosts: str, options: str, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        read(f"deepspeed {options.format(hosts=hosts)} train.py")
    assert message in str(caught.value)


def test_what_deepspeed_starts_on_a_node_has_the_world_of_the_launcher() -> None:
    world = base64.urlsafe_b64encode(json.dumps({"a": [1, 3], "b": [1, 3]}).encode()).decode()
    plan = read(f"python -u -m deepspeed.launcher.launch --world_info={world} --master_port=29500 train.py --x 1")
    assert (plan.script, plan.script_args, world_of(plan)) == ("train.py", ("--x", "1"), (2, 2))
    variables = variables_of(plan, 3)
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["CROSS_RANK"], variables["RANK"]) == ("1,3", "1", "3")
    assert plan.environment.leading_args(place_of(plan, 3)) == ("--local_rank=1",)


@pytest.mark.parametrize("world", ["", "--world_info=None", "--world_info=W10=", "--world_info=eyJhIjogIngifQ=="])
def test_a_malformed_world_of_deepspeed(world: str) -> None:
    with pytest.raises(LaunchError, match="rehearse the deepspeed command instead"):
        read(f"python -m deepspeed.launcher.launch {world} train.py")


@pytest.mark.parametrize("text", ["worker-0\n", "a slots=1\na slots=1\n", "# none\n"])
def test_a_malformed_hostfile(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LaunchError, match=r"hostfile must|line of the hostfile"):
        read(f"deepspeed --hostfile {path} train.py")


# ---- accelerate ----


def test_accelerate_takes_its_numbers_from_command_then_file_then_gpus(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"distributed_type": "MULTI_GPU", "num_processes": 16, "num_machines": 2}), encoding="utf-8"
    )
    assert world_of(read(f"accelerate launch --config_file {file} train.py")) == (2, 8)
    assert world_of(read(f"accelerate launch --config_file {file} --num_processes 8 train.py")) == (2, 4)
    assert world_of(read("accelerate launch train.py"), gpus=4) == (1, 4)
    assert world_of(read("accelerate launch --num_processes 2 train.py")) == (1, 2)


def test_accelerates_default_configuration_is_found(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.parent.mkdir()
    file.write_text("distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n", encoding="utf-8")
    plan = read("accelerate launch train.py", HF_HOME=str(tmp_path))
    variables = variables_of(plan, 1)
    assert world_of(plan) == (1, 4)
    assert (variables["ACCELERATE_USE_FSDP"], variables["FSDP_VERSION"], variables["RANK"]) == ("true", "2", "1")


def test_accelerate_runs_one_process_without_torchruns_variables() -> None:
    plan = read("accelerate launch --num_processes 1 --mixed_precision bf16 train.py")
    assert "RANK" not in variables_of(plan, 0)
    assert variables_of(plan, 0)["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert variables_of(read("accelerate launch --use_fsdp --num_processes 1 train.py"), 0)["WORLD_SIZE"] == "1"


def test_accelerate_starts_deepspeed_on_many_machines() -> None:
    plan = read("accelerate launch --use_deepspeed --num_machines 2 --num_processes 16 --zero_stage 3 train.py")
    variables = variables_of(plan, 9)
    assert variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert (variables["CROSS_RANK"], variables["LOCAL_SIZE"]) == ("1", "8")
    assert plan.environment.leading_args(place_of(plan, 9)) == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "must be a table"),
        ("{", "must be valid"),
        ('{"num_processes": 4}', "distributed_type must be in"),
        ('{"distributed_type": "MULTI_GPU"}', "--num_processes must be at least 1"),
        ('{"distributed_type": "XLA", "num_processes": 8}', "but got XLA"),
        ('{"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "NO"}', "but got AMAZON_SAGEMAKER"),
    ],
)
def test_configurations_that_cannot_be_used(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(LaunchError) as caught:
        read(f"accelerate launch --config_file {file} train.py")
    assert message in str(caught.value)
    with pytest.raises(LaunchError, match="must be readable"):
        read("accelerate launch --config_file nowhere.yaml train.py")
    with pytest.raises(LaunchError, match="must be given with --num_machines"):
        read("accelerate launch --num_machines 2 train.py")
