"""The options of `accelerate launch`: names, types and defaults, as of Accelerate 1.15."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandtable.errors import LaunchError
from sandtable.launch.options import OptionTable, option_names

__all__ = ["DEFAULTS", "TABLE", "option_value"]

_SWITCHES = option_names(
    """
    quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation
    use_deepspeed use_fsdp use_parallelism_config use_megatron_lm same_network module no_python tpu_cluster
    no_tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval debug
    """
)

_TEXTS = option_names(
    """
    config_file mixed_precision dynamo_backend dynamo_mode gpu_ids main_process_ip tee log_dir role rdzv_backend
    rdzv_conf vm env main_training_function deepspeed_config_file offload_optimizer_device offload_param_device
    offload_optimizer_nvme_path offload_param_nvme_path zero3_init_flag zero3_save_16bit_model deepspeed_hostfile
    deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher deepspeed_moe_layer_cls_names
    fsdp_version fsdp_offload_params fsdp_sharding_strategy fsdp_reshard_after_forward fsdp_auto_wrap_policy
    fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch fsdp_state_dict_type fsdp_forward_prefetch
    fsdp_use_orig_params fsdp_cpu_ram_efficient_loading fsdp_sync_module_states fsdp_activation_checkpointing
    fsdp_activation_checkpointing_offload megatron_lm_sequence_parallelism megatron_lm_recompute_activations
    megatron_lm_use_distributed_optimizer megatron_lm_recompute_granularity megatron_lm_recompute_method
    megatron_lm_attention_backend megatron_lm_attention_softmax_in_fp32 megatron_lm_calculate_per_token_loss
    megatron_lm_use_rotary_position_embeddings fp8_backend fp8_format fp8_amax_compute_algo
    fp8_override_linear_precision fp8_opt_level aws_access_key_id aws_secret_access_key mpirun_hostfile
    parallelism_config_cp_backend parallelism_config_cp_comm_strategy parallelism_config_sp_backend
    parallelism_config_sp_seq_length parallelism_config_sp_attn_implementation
    """
)

_NUMBERS = option_names(
    """
    num_processes num_machines num_cpu_threads_per_process machine_rank main_process_port max_restarts zero_stage
    gradient_accumulation_steps fsdp_min_num_params megatron_lm_tp_degree megatron_lm_pp_degree
    megatron_lm_num_micro_batches megatron_lm_decoder_last_pipeline_num_layers megatron_lm_recompute_num_layers
    megatron_lm_expert_model_parallel_size megatron_lm_context_parallel_size megatron_lm_expert_tensor_parallel_size
    fp8_margin fp8_interval fp8_amax_history_len parallelism_config_dp_replicate_size parallelism_config_dp_shard_size
    parallelism_config_tp_size parallelism_config_cp_size parallelism_config_sp_size
    """
)

_FRACTIONS = option_names(
    """
    monitor_interval gradient_clipping megatron_lm_gradient_clipping megatron_lm_attention_dropout
    megatron_lm_hidden_dropout
    """
)

_NON_EMPTY = option_names(
    """
    megatron_lm_use_custom_fsdp megatron_lm_no_load_optim megatron_lm_eod_mask_loss
    megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_no_save_optim megatron_lm_optimizer_cpu_offload
    megatron_lm_use_precision_aware_optimizer parallelism_config_sp_seq_length_is_variable
    """
)
"""Options that any value switches on, also "false": Accelerate reads them with `bool`."""

_TRUTHS = option_names("fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim")

TABLE = OptionTable(
    launcher="accelerate launch",
    values=_TEXTS | _NUMBERS | _FRACTIONS | _NON_EMPTY | _TRUTHS,
    switches=_SWITCHES,
    short={"-q": "quiet", "-m": "module", "-t": "tee"},
)

DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(_SWITCHES, False),
    **dict.fromkeys(_NON_EMPTY, False),
    **dict.fromkeys(_TRUTHS, True),
    "dynamo_mode": "default",
    "fsdp_version": "1",
    "fsdp_offload_params": "false",
    "fsdp_min_num_params": 100_000_000,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": "true",
    "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true",
    "fsdp_cpu_ram_efficient_loading": "true",
    "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false",
    "fsdp_activation_checkpointing_offload": "false",
    "megatron_lm_tp_degree": 1,
    "megatron_lm_pp_degree": 1,
    "megatron_lm_gradient_clipping": 1.0,
    "fp8_margin": 0,
    "fp8_interval": 1,
    "fp8_format": "HYBRID",
    "fp8_amax_history_len": 1024,
    "fp8_amax_compute_algo": "most_recent",
    "fp8_override_linear_precision": (False, False, False),
    "fp8_opt_level": "O2",
    "parallelism_config_dp_replicate_size": 1,
    "parallelism_config_dp_shard_size": 1,
    "parallelism_config_tp_size": 1,
    "parallelism_config_cp_size": 1,
    "parallelism_config_cp_backend": "torch",
    "parallelism_config_cp_comm_strategy": "allgather",
    "parallelism_config_sp_size": 1,
    "parallelism_config_sp_backend": "deepspeed",
    "parallelism_config_sp_seq_length_is_variable": True,
    "parallelism_config_sp_attn_implementation": "sdpa",
}
"""Defaults other than None."""


def option_value(name: str, text: str) -> Any:
    """Return the value of an option that was typed as `text`."""
    try:
        if name in _SWITCHES:
            return True
        if name in _NUMBERS:
            return int(text)
        if name in _FRACTIONS:
            return float(text)
    except ValueError:
        raise LaunchError(
            f"accelerate launch --{name} must be a number, but got '{text}'; write it as digits"
        ) from None
    if name in _NON_EMPTY:
        return bool(text)
    if name in _TRUTHS:
        return _is_true(text)
    return tuple(map(_is_true, text.split(","))) if name == "fp8_override_linear_precision" else text


def _is_true(text: str) -> bool:
    return text.lower() in ("y", "yes", "t", "true", "on", "1")
