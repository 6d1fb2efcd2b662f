"""torchrun, also called `python -m torch.distributed.run` and, with an argument more, `torch.distributed.launch`.

torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint $HEAD train.py --batch-size 32
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sandtable.errors import LaunchError
from sandtable.launch.environment import LauncherEnvironment, RankPlace, visible_gpus
from sandtable.launch.options import OptionTable, ParsedOptions
from sandtable.launch.plan import LaunchPlan

__all__ = ["OTHER_OPTIONS", "TorchrunEnvironment", "parse_nnodes", "parse_nproc_per_node", "parse_torchrun"]

OTHER_OPTIONS = {
    "rdzv_id": "",
    "role": "",
    "max_restarts": "",
    "signals_to_handle": "",
    "rdzv_backend": "",
    "rdzv_endpoint": "",
    "rdzv_conf": "",
    "monitor_interval": "",
    "start_method": "",
    "event_log_handler": "",
    "logs_specs": "",
    "log_dir": "",
    "redirects": "-r",
    "tee": "-t",
    "local_ranks_filter": "",
    "duplicate_stdout_filters": "",
    "duplicate_stderr_filters": "",
    "numa_binding": "",
    "shutdown_timeout": "",
    "node_rank": "",
    "master_addr": "",
    "master_port": "",
    "local_addr": "",
}
"""Options with a value besides the numbers of nodes and ranks: long name, and short form if there is one.

Most configure a network or a supervisor that a rehearsal does not have; ranks find the first four in their
environment.
"""

_TABLE = OptionTable(
    launcher="torchrun",
    values=frozenset({"nnodes", "nproc_per_node", *OTHER_OPTIONS}),
    switches=frozenset({"standalone", "module", "no_python", "run_path", "virtual_local_rank", "use_env"}),
    short={"-m": "module"} | {short: name for name, short in OTHER_OPTIONS.items() if short},
    may_shorten=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunEnvironment(LauncherEnvironment):
    """torchrun's variables. With `local_rank_flag`, the script also gets its local rank as this argument."""

    run_id: str = "none"
    role: str = "default"
    max_restarts: str = "0"
    signals: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    local_rank_flag: str | None = None

    def variables(self, place: RankPlace) -> dict[str, str]:
        values: dict[str, str | int] = {
            "RANK": place.rank,
            "LOCAL_RANK": place.local_rank,
            "WORLD_SIZE": place.world_size,
            "LOCAL_WORLD_SIZE": place.ranks_per_node,
            "GROUP_RANK": place.node,
            "GROUP_WORLD_SIZE": place.num_nodes,
            "ROLE_RANK": place.rank,
            "ROLE_WORLD_SIZE": place.world_size,
            "ROLE_NAME": self.role,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": place.master_port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": self.max_restarts,
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": self.signals,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        return {name: str(value) for name, value in values.items()}

    def leading_args(self, place: RankPlace) -> tuple[str, ...]:
        return () if self.local_rank_flag is None else (f"{self.local_rank_flag}={place.local_rank}",)


def parse_torchrun(words: Sequence[str], variables: Mapping[str, str], *, is_launch: bool = False) -> LaunchPlan:
    """Read the words after `torchrun`; `is_launch` for those after `python -m torch.distributed.launch`."""
    parsed = _TABLE.parse(words)
    parsed.reject(
        {
            "virtual_local_rank": "virtual GPUs are not hidden from other ranks; leave it out",
            "no_python": "only Python scripts run on virtual GPUs; name the script itself",
        }
    )
    script, script_args = parsed.require_script()
    passes_local_rank = is_launch and "use_env" not in parsed
    value, gpus = partial(_value, parsed, variables), visible_gpus(variables)
    return LaunchPlan(
        launcher="torchrun",
        script=script,
        script_args=script_args,
        is_module="module" in parsed,
        num_nodes=parse_nnodes(value("nnodes") or "1"),
        ranks_per_node=parse_nproc_per_node(value("nproc_per_node") or "1") or (len(gpus) if gpus else None),
        environment=TorchrunEnvironment(
            run_id=value("rdzv_id") or "none",
            role=value("role") or "default",
            max_restarts=value("max_restarts") or "0",
            signals=value("signals_to_handle") or TorchrunEnvironment().signals,
            local_rank_flag="--local-rank" if passes_local_rank else None,
        ),
    )


def parse_nnodes(text: str) -> int:
    """Read torchrun's number of nodes; of a range such as 2:4, the upper end."""
    last = text.split(":")[-1]
    if not last.isdigit() or int(last) < 1:
        raise LaunchError(f"--nnodes must be a number or a range such as 2:4, but got '{text}'; give a positive number")
    return int(last)


def parse_nproc_per_node(text: str) -> int | None:
    """Read torchrun's number of ranks per node; None stands for one per GPU."""
    if text in ("auto", "gpu"):
        return None
    if not text.isdigit() or int(text) < 1:
        raise LaunchError(
            f"--nproc-per-node must be a number, auto or gpu, but got '{text}'; auto starts one rank per GPU"
        )
    return int(text)


def _value(parsed: ParsedOptions, variables: Mapping[str, str], name: str) -> str | None:
    """Return an option's value, or else that of the variable which torchrun reads instead, such as PET_NNODES."""
    return parsed.get(name) or variables.get(f"PET_{name.upper()}")
