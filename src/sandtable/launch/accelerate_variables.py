"""The variables in which `accelerate launch` passes its options to the script, as of Accelerate 1.15."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["launched_variables", "simple_variables"]

_DYNAMO = {
    "ACCELERATE_DYNAMO_BACKEND": "dynamo_backend",
    "ACCELERATE_DYNAMO_MODE": "dynamo_mode",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "dynamo_use_fullgraph",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "dynamo_use_dynamic",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "dynamo_use_regional_compilation",
}

_FSDP_AS_TYPED = {
    "FSDP_VERSION": "fsdp_version",
    "FSDP_SHARDING_STRATEGY": "fsdp_sharding_strategy",
    "FSDP_MIN_NUM_PARAMS": "fsdp_min_num_params",
    "FSDP_AUTO_WRAP_POLICY": "fsdp_auto_wrap_policy",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "fsdp_transformer_layer_cls_to_wrap",
    "FSDP_BACKWARD_PREFETCH": "fsdp_backward_prefetch",
    "FSDP_STATE_DICT_TYPE": "fsdp_state_dict_type",
    "FSDP_IGNORED_MODULES": "fsdp_ignored_modules",
}

_FSDP_IN_LOWER_CASE = {
    "FSDP_RESHARD_AFTER_FORWARD": "fsdp_reshard_after_forward",
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params",
    "FSDP_FORWARD_PREFETCH": "fsdp_forward_prefetch",
    "FSDP_USE_ORIG_PARAMS": "fsdp_use_orig_params",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "fsdp_cpu_ram_efficient_loading",
    "FSDP_SYNC_MODULE_STATES": "fsdp_sync_module_states",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "fsdp_activation_checkpointing_offload",
}

_DEEPSPEED_AS_TYPED = {
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "zero_stage",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "gradient_accumulation_steps",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": "deepspeed_config_file",
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": "deepspeed_moe_layer_cls_names",
}

_DEEPSPEED_IN_LOWER_CASE = {
    "ACCELERATE_CONFIG_DS_FIELDS": "deepspeed_fields",
    "ACCELERATE_GRADIENT_CLIPPING": "gradient_clipping",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "offload_optimizer_device",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "offload_param_device",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "zero3_init_flag",
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "zero3_save_16bit_model",
}

_PARALLELISM = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "sp_size", "sp_backend")
_SEQUENCE_PARALLELISM = ("sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation")


def simple_variables(options: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a script that runs alone."""
    return {
        **_shared(options),
        **_texts(options, _DYNAMO),
        "ACCELERATE_USE_CPU": "False",
        "OMP_NUM_THREADS": _num_threads(options, variables),
    }


def launched_variables(options: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ranks that a launcher starts, besides that launcher's own."""
    values = _shared(options)
    if options["use_deepspeed"]:
        paths = [*filter(None, variables.get("PYTHONPATH", "").split(":")), os.getcwd()]
        values["ACCELERATE_USE_DEEPSPEED"] = "true"
        values["PYTHONPATH"] = ":".join(paths)
        values |= _texts(options, _DEEPSPEED_AS_TYPED) | _in_lower_case(options, _DEEPSPEED_IN_LOWER_CASE)
    else:
        values["OMP_NUM_THREADS"] = _num_threads(options, variables)
        values |= _texts(options, _DYNAMO)
    if options["use_fsdp"]:
        values["ACCELERATE_USE_FSDP"] = "true"
        values |= _texts(options, _FSDP_AS_TYPED) | _in_lower_case(options, _FSDP_IN_LOWER_CASE)
    if options["use_megatron_lm"]:
        values["ACCELERATE_USE_MEGATRON_LM"] = "true"
        values |= _texts(options, {name.upper(): name for name in options if name.startswith("megatron_lm_")})
    if options["use_parallelism_config"]:
        values |= _parallelism(options)
    return values


def _shared(options: Mapping[str, Any]) -> dict[str, str]:
    values = {"ACCELERATE_MIXED_PRECISION": options["mixed_precision"]}
    if options["debug"]:
        values["ACCELERATE_DEBUG_MODE"] = "true"
    if options["enable_cpu_affinity"]:
        values["ACCELERATE_CPU_AFFINITY"] = "1"
    gpus = options.get("gpu_ids")
    if gpus not in (None, "all"):
        values["CUDA_VISIBLE_DEVICES"] = str(gpus)
    if options["mixed_precision"] == "fp8":
        values |= _fp8(options)
    return values


def _fp8(options: Mapping[str, Any]) -> dict[str, str]:
    names = [name for name in options if name.startswith("fp8_") and name != "fp8_override_linear_precision"]
    overrides = dict(zip(("FPROP", "DGRAD", "WGRAD"), options["fp8_override_linear_precision"], strict=False))
    return _texts(options, {f"ACCELERATE_{name.upper()}": name for name in names}) | {
        f"ACCELERATE_FP8_OVERRIDE_{name}": str(value) for name, value in overrides.items()
    }


def _parallelism(options: Mapping[str, Any]) -> dict[str, str]:
    names = [*_PARALLELISM]
    if options["parallelism_config_cp_size"] > 1:
        names.append("cp_comm_strategy")
    if options["parallelism_config_sp_size"] > 1:
        names += _SEQUENCE_PARALLELISM
    values = {f"PARALLELISM_CONFIG_{name.upper()}": str(options.get(f"parallelism_config_{name}")) for name in names}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **values}


def _num_threads(options: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    return str(options.get("num_cpu_threads_per_process") or variables.get("OMP_NUM_THREADS", "1"))


def _texts(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    return {variable: str(options[name]) for variable, name in names.items() if options.get(name) is not None}


def _in_lower_case(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    return {variable: text.lower() for variable, text in _texts(options, names).items()}
