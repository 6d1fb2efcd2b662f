"""`accelerate launch`, of Hugging Face's Accelerate.

    accelerate launch --multi_gpu --num_processes 8 --mixed_precision bf16 train.py
    accelerate launch --config_file fsdp.yaml train.py

Options come from the command, then from the configuration file, then from Accelerate's defaults. The script finds them
as variables (`ACCELERATE_*`, `FSDP_*`, ...) besides those of torchrun, through which Accelerate starts the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandtable.errors import LaunchError
from sandtable.launch.accelerate_config import AccelerateConfig, default_config_file, read_config
from sandtable.launch.accelerate_options import DEFAULTS, TABLE, option_value
from sandtable.launch.accelerate_variables import launched_variables, simple_variables
from sandtable.launch.deepspeed import DeepSpeedEnvironment
from sandtable.launch.environment import (
    FixedEnvironment,
    LauncherEnvironment,
    LayeredEnvironment,
    RankPlace,
    visible_gpus,
)
from sandtable.launch.options import ParsedOptions
from sandtable.launch.plan import LaunchPlan
from sandtable.launch.torchrun import TorchrunEnvironment

__all__ = ["AccelerateEnvironment", "parse_accelerate"]

_PARADIGMS = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
    "multi_gpu": "MULTI_GPU",
}
"""Options that select how ranks work together, and the distributed type in a configuration that stands for each."""

_NO_GPUS = "it does not train on the GPUs of a cluster; rehearse the script with --multi_gpu or without the option"
_REJECTED = {
    "cpu": _NO_GPUS,
    "tpu": _NO_GPUS,
    "mpirun_hostfile": _NO_GPUS,
    "no_python": "only Python scripts run on virtual GPUs; name the script itself",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateEnvironment(LauncherEnvironment):
    """Accelerate's variables: those of ranks that torchrun starts, or of a script that Accelerate runs alone."""

    simple: Mapping[str, str]
    launched: Mapping[str, str]
    uses_torchrun: bool
    """Whether torchrun starts the ranks also where there is only one."""

    def variables(self, place: RankPlace) -> dict[str, str]:
        if place.world_size == 1 and not self.uses_torchrun:
            return dict(self.simple)
        return {**self.launched, **TorchrunEnvironment().variables(place)}


def parse_accelerate(words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    """Read the words after `accelerate launch`."""
    parsed = TABLE.parse(words)
    parsed.reject(_REJECTED)
    script, script_args = parsed.require_script()
    config = _config(parsed, variables)
    options = _resolved(parsed, config)
    num_machines, num_processes = options.get("num_machines") or 1, _num_processes(options, config, variables)
    if num_processes is None and num_machines > 1:
        raise LaunchError(
            f"accelerate launch --num_processes must be given with --num_machines ({num_machines}), but is not; give "
            "the number of ranks on all machines together"
        )
    return LaunchPlan(
        launcher="accelerate launch",
        script=script,
        script_args=script_args,
        is_module="module" in parsed,
        num_nodes=num_machines,
        num_ranks=num_processes,
        environment=_environment(options, variables, num_machines),
    )


def _config(parsed: ParsedOptions, variables: Mapping[str, str]) -> AccelerateConfig | None:
    """Return the configuration that the command names, or the user's default if there is one."""
    named, default = parsed.get("config_file"), default_config_file(variables)
    if named is None and not default.is_file():
        return None
    config = read_config(Path(named) if named is not None else default)
    if config.kind not in ("NO", *_PARADIGMS.values()):
        raise LaunchError(
            f"distributed_type must be one that trains on CUDA GPUs, but got {config.kind}; choose MULTI_GPU, FSDP, "
            "DEEPSPEED, MEGATRON_LM or NO"
        )
    return config


def _resolved(parsed: ParsedOptions, config: AccelerateConfig | None) -> dict[str, Any]:
    """Return the value of every option: as typed, else as configured, else Accelerate's default."""
    typed = {name: option_value(name, text) for name, text in parsed.given}
    options = {**DEFAULTS, **typed}
    fields: list[str] = []
    if config is not None:
        if not any(options[name] for name in _PARADIGMS):
            options.update({name: kind == config.kind for name, kind in _PARADIGMS.items()})
            options["use_parallelism_config"] = bool(config.tables.get("parallelism_config"))
        options.update((name, value) for name, value in config.table_options() if name not in typed)
        for name, value in config.options.items():
            if options.get(name) is None:
                options[name] = value
        options["debug"] = options["debug"] or bool(config.options.get("debug"))
        fields = [*config.tables.get("deepspeed_config", {})]
        if "mixed_precision" not in typed and "mixed_precision" in config.options:
            fields.append("mixed_precision")
    options["deepspeed_fields"] = ",".join(fields)
    options["mixed_precision"] = str(options.get("mixed_precision") or "no").lower()
    options["dynamo_backend"] = str(options.get("dynamo_backend") or "no").upper()
    return options


def _num_processes(
    options: Mapping[str, Any], config: AccelerateConfig | None, variables: Mapping[str, str]
) -> int | None:
    """Return the ranks on all machines together; None stands for one per GPU of the machine."""
    number: int | None = options.get("num_processes")
    if number is not None and number < 1:
        raise LaunchError(
            f"accelerate launch --num_processes must be at least 1, but got {number}; give it in the command, or as "
            "num_processes in the configuration"
        )
    if config is not None and not any(options[name] for name in _PARADIGMS):
        return 1
    gpus = visible_gpus(variables)
    return len(gpus) if number is None and gpus is not None else number


def _environment(options: Mapping[str, Any], variables: Mapping[str, str], num_machines: int) -> LauncherEnvironment:
    launched = launched_variables(options, variables)
    backend = options.get("deepspeed_multinode_launcher") or "pdsh"
    if options["use_deepspeed"] and num_machines > 1 and backend != "standard":
        return LayeredEnvironment(
            (FixedEnvironment(launched), DeepSpeedEnvironment(passes_local_rank=backend == "nossh"))
        )
    return AccelerateEnvironment(
        simple=simple_variables(options, variables),
        launched=launched,
        uses_torchrun=any(options[name] for name in _PARADIGMS),
    )
