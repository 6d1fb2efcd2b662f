"""`composer`, of MosaicML's Composer and llm-foundry.

composer -n 8 train/train.py train/yamls/pretrain/mpt-125m.yaml
composer --world_size 64 --node_rank 0 --master_addr head -n 8 train.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandtable.launch.environment import LauncherEnvironment, RankPlace
from sandtable.launch.options import OptionTable, option_names, parse_count
from sandtable.launch.plan import LaunchPlan

__all__ = ["ComposerEnvironment", "parse_composer"]

_TABLE = OptionTable(
    launcher="composer",
    values=option_names("nproc stdout stderr world_size base_rank node_rank master_addr master_port"),
    switches=option_names("verbose module_mode command_mode"),
    short={"-n": "nproc", "-v": "verbose", "-m": "module_mode", "-c": "command_mode"},
    has_both_spellings=False,
    may_shorten=True,
)


@dataclass(frozen=True, slots=True)
class ComposerEnvironment(LauncherEnvironment):
    """The variables of Composer's launcher."""

    def variables(self, place: RankPlace) -> dict[str, str]:
        values: dict[str, str | int] = {
            "RANK": place.rank,
            "WORLD_SIZE": place.world_size,
            "LOCAL_RANK": place.local_rank,
            "LOCAL_WORLD_SIZE": place.ranks_per_node,
            "NODE_RANK": place.node,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": place.master_port,
            "PYTHONUNBUFFERED": 1,
            "NCCL_ASYNC_ERROR_HANDLING": 1,
        }
        return {name: str(value) for name, value in values.items()}


def parse_composer(words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    """Read the words after `composer`. What it does not find among them, it takes from torchrun's variables."""
    parsed = _TABLE.parse(words)
    parsed.reject({"command_mode": "only Python scripts run on virtual GPUs; name the script itself"})
    script, script_args = parsed.require_script()
    nproc = parsed.get("nproc") or variables.get("LOCAL_WORLD_SIZE")
    world_size = parsed.get("world_size") or variables.get("WORLD_SIZE")
    return LaunchPlan(
        launcher="composer",
        script=script,
        script_args=script_args,
        is_module="module_mode" in parsed,
        num_nodes=1 if world_size is None else None,
        ranks_per_node=None if nproc is None else parse_count(nproc, "composer -n"),
        num_ranks=None if world_size is None else parse_count(world_size, "composer --world_size"),
        environment=ComposerEnvironment(),
    )
