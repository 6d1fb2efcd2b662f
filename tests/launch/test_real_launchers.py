"""Each launcher that is installed gives its ranks what ours says it would."""

import argparse
import base64
import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.launch.places import place_of, variables_of

from sandtable.launch import LaunchPlan, RankPlace, parse_command

SCRIPT = Path(__file__).parent / "print_environment.py"
PARENTS = {"PYTHONPATH", "PYTEST_CURRENT_TEST", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
"""Variables of this process, or of libraries that the launcher imports, which no rank reads."""


def run(command: list[str], records: Path, **variables: str) -> list[dict[str, Any]]:
    """Run a launcher for real, and return what each of its processes found, by rank."""
    done = subprocess.run(
        [sys.executable, "-m", *command, str(SCRIPT), str(records)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    return sorted(ranks, key=lambda rank: int(rank["variables"]["RANK"]))


def set_by_launcher(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if os.environ.get(name) != value and name not in PARENTS}


def assert_same_ranks(ranks: list[dict[str, Any]], plan: LaunchPlan, records: Path, *, own: set[str]) -> None:
    """Compare variables and arguments, except for ports and the variables in `own`, which differ from run to run."""
    own = own | {"MASTER_PORT", "MASTER_ADDR"}
    for number, rank in enumerate(ranks):
        real, ours = set_by_launcher(rank["variables"]), variables_of(plan, number)
        assert real.keys() - own == ours.keys() - own
        assert {name: real[name] for name in real.keys() - own} == {name: ours[name] for name in ours.keys() - own}
        assert tuple(rank["args"]) == (*plan.environment.leading_args(place_of(plan, number)), str(records))


@pytest.mark.parametrize(
    "module", ["torch.distributed.run", pytest.param("torch.distributed.launch", id="torch.distributed.launch")]
)
def test_torchruns_ranks(module: str, tmp_path: Path) -> None:
    options = ["--nproc-per-node", "2", "--role", "trainer", "--max-restarts", "2", "--master-port", str(free_port())]
    records = tmp_path / "ranks"
    ranks = run([module, *options], records, OMP_NUM_THREADS="1")
    plan = parse_command(["python", "-m", module, *options, str(SCRIPT)])
    assert_same_ranks(ranks, plan, records, own={"TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS"})


def test_deepspeeds_ranks(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    world = base64.urlsafe_b64encode(json.dumps({"localhost": [0, 1]}).encode()).decode()
    records = tmp_path / "ranks"
    # What `deepspeed` starts on a node; the command itself looks for GPUs first.
    ranks = run(["deepspeed.launcher.launch", f"--world_info={world}"], records, DS_ACCELERATOR="cuda")
    plan = parse_command(["deepspeed", "--num_gpus", "2", str(SCRIPT)])
    assert_same_ranks(ranks, plan, records, own={"DS_ACCELERATOR"})


FSDP = """
distributed_type: FSDP
num_processes: 4
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  cpu_ram_efficient_loading: true
"""

DEEPSPEED = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 4
deepspeed_config:
  gradient_accumulation_steps: 2
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 2
"""

MEGATRON = """
distributed_type: MEGATRON_LM
num_processes: 8
megatron_lm_config:
  megatron_lm_tp_degree: 2
  megatron_lm_pp_degree: 2
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 4
"""

COMPILED = """
distributed_type: MULTI_GPU
num_processes: 4
gpu_ids: 0,1,2,3
debug: true
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: default
  dynamo_use_dynamic: true
"""

PARALLEL = """
distributed_type: FSDP
num_processes: 8
fsdp_config:
  fsdp_version: 2
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
  parallelism_config_cp_size: 2
"""


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("", "--num_processes 1"),
        ("", "--num_processes 1 --dynamo_backend inductor --mixed_precision fp16"),
        ("", "--multi_gpu --num_processes 4"),
        ("", "--num-processes 4 --multi_gpu --mixed-precision bf16 --num_cpu_threads_per_process 4 --debug"),
        ("", "--use_fsdp --num_processes 4 --fsdp_offload_params true --fsdp_sharding_strategy SHARD_GRAD_OP"),
        ("", "--use_deepspeed --num_processes 4 --zero_stage 3 --gradient_clipping 1 --zero3_init_flag True"),
        ("", "--use_megatron_lm --num_processes 4 --megatron_lm_tp_degree 2 --megatron_lm_no_load_optim False"),
        ("distributed_type: 'NO'\n", ""),
        ("distributed_type: 'NO'\nmixed_precision: fp16\n", "--mixed_precision bf16"),
        (FSDP, ""),
        (FSDP, "--fsdp_version 1 --fsdp_use_orig_params false --num_processes 8"),
        (DEEPSPEED, ""),
        (DEEPSPEED, "--zero_stage 1 --mixed_precision no"),
        (MEGATRON, ""),
        (COMPILED, "--dynamo_mode max-autotune"),
        (PARALLEL, ""),
    ],
)
def test_accelerates_ranks(config: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    monkeypatch.setattr(launch, "default_config_file", "/nowhere")
    words = options.split()
    if config:
        file = tmp_path / "config.yaml"
        file.write_text(config, encoding="utf-8")
        words = ["--config_file", str(file), *words]
    words.append(str(SCRIPT))
    real = prepared(launch, launch.launch_command_parser().parse_args(words))
    plan = parse_command(["accelerate", "launch", *words], dict(os.environ) | {"HF_HOME": "/nowhere"})
    place = place_of(plan, 0)
    assert place.world_size == real.pop("num_processes")
    ours = plan.environment.variables(place)
    assert ours | real == ours
    assert set(ours) - set(real) <= set(torchruns_variables(place))


def prepared(launch: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the variables with which Accelerate's own functions would start torchrun, or the script itself."""
    arguments, defaults, is_configured = launch._validate_launch_command(arguments)
    functions = importlib.import_module("accelerate.utils.launch")
    # Whether a port is free does not matter where nothing is started.
    arguments.main_process_port = free_port()
    is_launched = arguments.multi_gpu or arguments.use_fsdp or arguments.use_megatron_lm
    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config] if defaults else []
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields + ["mixed_precision"] * is_configured)
        _, variables = functions.prepare_deepspeed_cmd_env(arguments)
    elif is_launched:
        variables = functions.prepare_multi_gpu_env(arguments)
    else:
        _, variables = functions.prepare_simple_launcher_cmd_env(arguments)
    alone = not (is_launched or arguments.use_deepspeed)
    changed = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    return changed | {"num_processes": 1 if alone else arguments.num_processes}


def torchruns_variables(place: RankPlace) -> dict[str, str]:
    plan = parse_command(["torchrun", "train.py"])
    return plan.environment.variables(place) | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
