"""`fabric run`, of Lightning Fabric.

    fabric run --accelerator cuda --strategy fsdp --devices 8 --num-nodes 4 --precision bf16-mixed train.py

Fabric starts the ranks through torchrun. The script's `Fabric` object finds the options as variables (`LT_*`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandtable.errors import LaunchError
from sandtable.launch.environment import FixedEnvironment, LayeredEnvironment
from sandtable.launch.options import OptionTable, option_names, parse_count
from sandtable.launch.plan import LaunchPlan
from sandtable.launch.torchrun import TorchrunEnvironment

__all__ = ["parse_fabric"]

_TABLE = OptionTable(
    launcher="fabric run",
    values=option_names("accelerator strategy devices num_nodes node_rank main_address main_port precision"),
)

_GPUS = ("cuda", "gpu", "auto")


def parse_fabric(words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    """Read the words after `fabric`."""
    if list(words[:1]) != ["run"]:
        raise LaunchError(
            f"only `fabric run` starts a script, but got 'fabric {' '.join(words)}'; add run and a script"
        )
    parsed = _TABLE.parse(words[1:])
    script, script_args = parsed.require_script()
    for word in script_args:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag[2:].replace("-", "_") in _TABLE.values:
            raise LaunchError(f"fabric run takes {flag} for itself, also behind the script; put it before the script")
    accelerator = parsed.get("accelerator")
    if accelerator not in (None, *_GPUS):
        raise LaunchError(f"fabric run --accelerator must be {' or '.join(_GPUS)}, but got {accelerator}; change it")
    devices, num_nodes = parsed.get("devices") or "1", parsed.count("num_nodes") or 1
    options = {"accelerator": accelerator, "strategy": parsed.get("strategy"), "precision": parsed.get("precision")}
    given = {f"LT_{name.upper()}": value for name, value in options.items() if value is not None}
    own = FixedEnvironment({"LT_CLI_USED": "1", **given, "LT_DEVICES": devices, "LT_NUM_NODES": str(num_nodes)})
    return LaunchPlan(
        launcher="fabric run",
        script=script,
        script_args=script_args,
        num_nodes=num_nodes,
        ranks_per_node=1 if options["strategy"] == "dp" else _num_devices(devices),
        environment=LayeredEnvironment((own, TorchrunEnvironment())),
    )


def _num_devices(devices: str) -> int | None:
    """Return how many devices Fabric takes per node: a number, a list of their numbers, or all (None)."""
    if devices == "auto":
        return 1
    if devices == "-1":
        return None
    if "," in devices:
        return len([device for device in devices.split(",") if device.strip()])
    return parse_count(devices, "fabric run --devices")
