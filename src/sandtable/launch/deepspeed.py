"""DeepSpeed's launcher.

    deepspeed --num_gpus 8 train.py --deepspeed ds_config.json
    deepspeed --hostfile hosts --include worker-0@worker-1:0,2 train.py

Hosts and their GPUs are read from the hostfile, by default /job/hostfile; without one there is a single node. What it
starts on each node, `python -m deepspeed.launcher.launch`, is read, too: scripts that call the launcher as a function
(GPT-NeoX) start only that.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandtable.errors import LaunchError
from sandtable.launch.environment import (
    FixedEnvironment,
    LauncherEnvironment,
    LayeredEnvironment,
    RankPlace,
    visible_gpus,
)
from sandtable.launch.options import OptionTable, ParsedOptions, option_names
from sandtable.launch.plan import LaunchPlan

__all__ = ["DeepSpeedEnvironment", "parse_deepspeed", "parse_deepspeed_node"]

_DEFAULT_HOSTFILE = "/job/hostfile"
_ENVIRONMENT_FILE = ".deepspeed_env"
_NO_PYTHON = "only Python scripts run on virtual GPUs; name the script itself"

_TABLE = OptionTable(
    launcher="deepspeed",
    values=option_names(
        """
        hostfile include exclude num_nodes num_gpus num_accelerators master_port master_addr node_rank launcher
        launcher_args enable_each_rank_log autotuning bind_core_list ssh_port venv_script log_level
        """
    ),
    switches=option_names(
        "module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid bind_cores_to_rank quiet"
    ),
    short={"-H": "hostfile", "-i": "include", "-e": "exclude", "-q": "quiet", "--num_accelerators": "num_gpus"},
    has_both_spellings=False,
    may_shorten=True,
)

_NODE_TABLE = OptionTable(
    launcher="deepspeed.launcher.launch",
    values=option_names(
        "node_rank master_addr master_port world_info save_pid enable_each_rank_log bind_core_list log_level"
    ),
    switches=option_names("module no_python no_local_rank bind_cores_to_rank quiet"),
    short={"-q": "quiet"},
    has_both_spellings=False,
    may_shorten=True,
)

Hosts = Mapping[str, tuple[int, ...]]
"""The GPUs of each host, by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedEnvironment(LauncherEnvironment):
    """DeepSpeed's variables. `gpus` are the numbers of the GPUs in use on each node; None stands for all."""

    gpus: tuple[int, ...] | None = None
    passes_local_rank: bool = True

    def variables(self, place: RankPlace) -> dict[str, str]:
        gpus = range(place.ranks_per_node) if self.gpus is None else self.gpus
        values: dict[str, str | int] = {
            "RANK": place.rank,
            "LOCAL_RANK": place.local_rank,
            "WORLD_SIZE": place.world_size,
            "LOCAL_SIZE": place.ranks_per_node,
            "CROSS_RANK": place.node,
            "CROSS_SIZE": place.num_nodes,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": place.master_port,
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        }
        return {name: str(value) for name, value in values.items()}

    def leading_args(self, place: RankPlace) -> tuple[str, ...]:
        return (f"--local_rank={place.local_rank}",) if self.passes_local_rank else ()


def parse_deepspeed(words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    """Read the words after `deepspeed`."""
    parsed = _TABLE.parse(words)
    parsed.reject(
        {
            "autotuning": "it runs many trainings; rehearse each configuration",
            "no_python": _NO_PYTHON,
        }
    )
    backend = (parsed.get("launcher") or "pdsh").lower()
    if backend != "pdsh":
        raise LaunchError(
            f"deepspeed --launcher must be pdsh, but got '{backend}'; start the ranks with srun or mpirun instead: "
            "sandtable run -- srun ... python train.py"
        )
    hosts = _hosts(parsed, visible_gpus(variables))
    plan = _plan(parsed, hosts, ranks_per_node=parsed.count("num_gpus"))
    if len(hosts) > 1 and "no_ssh" not in parsed:
        layers = (FixedEnvironment(_exported(variables)), plan.environment)
        return replace(plan, environment=LayeredEnvironment(layers))
    return plan


def parse_deepspeed_node(words: Sequence[str], variables: Mapping[str, str]) -> LaunchPlan:
    """Read the words after `python -m deepspeed.launcher.launch`, which starts the ranks of one node."""
    parsed = _NODE_TABLE.parse(words)
    parsed.reject({"no_python": _NO_PYTHON})
    return _plan(parsed, _even(_read_world(parsed.get("world_info") or "")))


def _plan(parsed: ParsedOptions, hosts: Hosts, *, ranks_per_node: int | None = None) -> LaunchPlan:
    """Return the plan for these hosts; `ranks_per_node` where there are none."""
    script, script_args = parsed.require_script()
    gpus = next(iter(hosts.values()), None)
    return LaunchPlan(
        launcher="deepspeed",
        script=script,
        script_args=script_args,
        is_module="module" in parsed,
        num_nodes=max(len(hosts), 1),
        ranks_per_node=ranks_per_node if gpus is None else len(gpus),
        environment=DeepSpeedEnvironment(gpus=gpus, passes_local_rank="no_local_rank" not in parsed),
    )


def _read_world(text: str) -> Hosts:
    """Return the hosts that DeepSpeed gives its launcher on each node: JSON in base64."""
    try:
        hosts = json.loads(base64.urlsafe_b64decode(text))
        world = {str(name): tuple(map(int, gpus)) for name, gpus in hosts.items()}
    except (binascii.Error, ValueError, AttributeError, TypeError):
        world = {}
    if not world:
        raise LaunchError(
            f"--world_info must be hosts and their GPUs, such as {{'localhost': [0, 1]}}, as JSON in base64, but got "
            f"'{text}'; rehearse the deepspeed command instead"
        )
    return world


def _hosts(parsed: ParsedOptions, visible: tuple[str, ...] | None) -> Hosts:
    """Return the hosts in use and their GPUs; none without a hostfile and without a filter."""
    num_nodes, num_gpus = parsed.count("num_nodes"), parsed.count("num_gpus")
    include, exclude = parsed.get("include"), parsed.get("exclude")
    if (include or exclude) and (num_nodes or num_gpus):
        raise LaunchError("deepspeed takes --include and --exclude without --num_nodes and --num_gpus; drop either")
    if include and exclude:
        raise LaunchError("deepspeed takes --include or --exclude, but got both; drop either")
    pool = _read_hostfile(parsed.get("hostfile"))
    if not pool and (num_nodes or 1) > 1:
        raise LaunchError(
            f"deepspeed --num_nodes ({num_nodes}) must be 1 without a hostfile, and there is none; give --hostfile"
        )
    if not (pool or include or exclude or num_gpus) and visible is not None:
        include = f"localhost:{','.join(visible)}"
    if include:
        hosts = _included(pool, include)
    elif exclude:
        hosts = _excluded(pool, exclude)
    else:
        hosts = {name: pool[name] for name in list(pool)[:num_nodes]}
    if num_gpus is not None:
        hosts = {name: tuple(range(num_gpus)) for name in hosts}
    return _even(hosts)


def _even(hosts: Hosts) -> Hosts:
    """Return the hosts, which must have as many GPUs each."""
    if len({len(gpus) for gpus in hosts.values()}) > 1:
        counts = ", ".join(f"{name}: {len(gpus)}" for name, gpus in hosts.items())
        raise LaunchError(f"every node must have the same number of ranks, but got {counts}; make them equal")
    return hosts


def _read_hostfile(path: str | None) -> Hosts:
    """Return the hosts of a file with lines such as `worker-0 slots=8`."""
    file = Path(path or _DEFAULT_HOSTFILE)
    if not file.is_file():
        if path is not None:
            raise LaunchError(f"the hostfile must be a file, but '{path}' does not exist; check --hostfile")
        return {}
    hosts: dict[str, tuple[int, ...]] = {}
    for line in map(str.strip, file.read_text(encoding="utf-8").splitlines()):
        entry = re.match(r"(\S+)\s+slots=(\d+)", line)
        if not line or line.startswith("#"):
            continue
        if entry is None or entry[1] in hosts:
            raise LaunchError(
                f"each line of the hostfile must be a new host with its slots, such as 'worker-0 slots=8', but got "
                f"'{line}'; correct {file}"
            )
        hosts[entry[1]] = tuple(range(int(entry[2])))
    if not hosts:
        raise LaunchError(f"the hostfile must name a host, but {file} names none; add lines such as 'worker-0 slots=8'")
    return hosts


def _included(pool: Hosts, text: str) -> Hosts:
    chosen = _filters(pool, text)
    order = pool or chosen
    return {name: chosen[name] or pool[name] for name in order if name in chosen}


def _excluded(pool: Hosts, text: str) -> Hosts:
    left: dict[str, tuple[int, ...]] = dict(pool)
    for name, gpus in _filters(pool, text).items():
        if name not in pool:
            raise LaunchError(f"--exclude needs a hostfile that names '{name}', but there is none; give --hostfile")
        left[name] = tuple(gpu for gpu in pool[name] if gpus and gpu not in gpus)
    return {name: gpus for name, gpus in left.items() if gpus}


def _filters(pool: Hosts, text: str) -> Hosts:
    """Read `NAME[:GPU,GPU...][@NAME...]`; a host without numbers stands for all its GPUs."""
    filters: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        name, _, numbers = part.partition(":")
        if not re.fullmatch(r"(\d+(,\d+)*)?", numbers):
            raise LaunchError(f"a filter must be NAME or NAME:0,1, but got '{part}'; separate GPUs with commas")
        gpus = tuple(sorted({*map(int, filter(None, numbers.split(","))), *filters.get(name, ())}))
        is_known = name in pool if pool else name == "localhost" and bool(gpus)
        if not is_known or (pool and not set(gpus) <= set(pool[name])):
            raise LaunchError(
                f"a filter must name hosts and GPUs of the hostfile, but got '{part}'; the hosts are "
                f"{', '.join(pool) or 'localhost:0,1,... without a hostfile'}"
            )
        filters[name] = gpus
    return filters


def _exported(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what DeepSpeed exports to the nodes: the module path, and the variables of `.deepspeed_env` files."""
    exported = {"PYTHONPATH": ":".join(filter(None, (os.getcwd(), variables.get("PYTHONPATH", ""))))}
    name = variables.get("DS_ENV_FILE", _ENVIRONMENT_FILE)
    for file in (Path.home() / name, Path(name)):
        if file.is_file():
            lines = file.read_text(encoding="utf-8").splitlines()
            pairs = (line.strip().partition("=") for line in lines)
            exported.update((name, value) for name, is_set, value in pairs if is_set)
    return exported
