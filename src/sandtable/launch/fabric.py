"""`fabric run`, of Lightning Fabric, which older releases call `lightning run model`.

    fabric run --accelerator cuda --strategy fsdp --devices 8 --num-nodes 4 --precision bf16-mixed train.py

Fabric starts the ranks through torchrun. The script's `Fabric` object finds the options as variables (`LT_*`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandtable.errors import LaunchError
from sandtable.launch.environment import FixedEnvironment, LayeredEnvironment
from sandtable.launch.options import OptionTable, ParsedOptions, option_names, parse_count
from sandtable.launch.plan import LaunchPlan
from sandtable.launch.torchrun import TorchrunEnvironment

__all__ = ["parse_fabric", "parse_lightning"]

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
    return _parse_run(words[1:])


def parse_lightning(words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    """Read the words after `lightning`."""
    if list(words[:2]) != ["run", "model"]:
        raise LaunchError(
            f"only `lightning run model` starts a script, but got 'lightning {' '.join(words)}'; add run model and a "
            "script"
        )
    return _parse_run(words[2:])


def _parse_run(words: Sequence[str]) -> LaunchPlan:
    parsed = _TABLE.parse(words)
    script, words_behind = parsed.require_script()
    script_args = _without_own(words_behind, parsed)
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


def _without_own(words: Sequence[str], parsed: ParsedOptions) -> tuple[str, ...]:
    """Return the script's arguments: Fabric takes its options out of them, too, and the script does not see them."""
    args: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, has_value, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        if not flag.startswith("--") or name not in _TABLE.values:
            args.append(word)
            continue
        if not has_value and rest:
            value = rest.pop(0)
        if value != parsed.get(name):
            raise LaunchError(f"fabric run takes {flag} for itself, also behind the script; put it before the script")
    return tuple(args)


def _num_devices(devices: str) -> int | None:
    """Return how many devices Fabric takes per node: a number, a list of their numbers, or all (None)."""
    if devices == "auto":
        return 1
    if devices == "-1":
        return None
    if "," in devices:
        return len([device for device in devices.split(",") if device.strip()])
    return parse_count(devices, "fabric run --devices")
