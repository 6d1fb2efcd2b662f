"""mpirun and mpiexec with the options and variables of Open MPI.

mpirun -np 32 --npernode 8 -x NCCL_DEBUG=INFO python train.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandtable.errors import LaunchError
from sandtable.launch.environment import FixedEnvironment, LauncherEnvironment, LayeredEnvironment, RankPlace
from sandtable.launch.options import OptionTable, ParsedOptions, parse_count
from sandtable.launch.plan import LaunchPlan
from sandtable.launch.slurm import nested_plan

__all__ = ["MpiEnvironment", "parse_mpirun"]

_VALUES = {
    "np": ("-np", "-n", "-c", "--n"),
    "npernode": ("-npernode", "-N", "--N"),
    "host": ("-H", "-host"),
    "hostfile": ("-hostfile", "-machinefile", "--machinefile", "-f"),
    "x": ("-x",),
    "map_by": ("-map-by",),
    "bind_to": ("-bind-to",),
    "rank_by": ("-rank-by",),
    "prefix": ("-prefix",),
    "wdir": ("-wdir", "-wd"),
    "path": ("-path",),
    "output_filename": ("-output-filename",),
}
"""Options with one value, and their other spellings."""

_SWITCHES = {
    "allow_run_as_root": ("-allow-run-as-root",),
    "oversubscribe": ("-oversubscribe",),
    "tag_output": ("-tag-output",),
    "report_bindings": ("-report-bindings",),
    "display_map": ("-display-map",),
    "quiet": ("-q",),
    "verbose": ("-v",),
    "bind_to_none": ("-bind-to-none",),
}

_PAIRS = {"mca": ("-mca",), "gmca": ("-gmca",)}
"""Options with two values, which configure the network."""

_TABLE = OptionTable(
    launcher="mpirun",
    values=frozenset(_VALUES),
    pairs=frozenset(_PAIRS),
    switches=frozenset(_SWITCHES),
    short={
        spelling: name
        for table in (_VALUES, _PAIRS, _SWITCHES)
        for name, spellings in table.items()
        for spelling in spellings
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiEnvironment(LauncherEnvironment):
    """Open MPI's variables for a process: a rank, or with `is_agent` the launcher that starts the ranks of a node."""

    is_agent: bool

    def variables(self, place: RankPlace) -> dict[str, str]:
        per_node = 1 if self.is_agent else place.ranks_per_node
        rank, local_rank = (place.node, 0) if self.is_agent else (place.rank, place.local_rank)
        values = {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": per_node * place.num_nodes,
            "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
            "OMPI_COMM_WORLD_LOCAL_SIZE": per_node,
            "OMPI_COMM_WORLD_NODE_RANK": local_rank,
            "OMPI_UNIVERSE_SIZE": per_node * place.num_nodes,
            "PMIX_RANK": rank,
        }
        return {name: str(value) for name, value in values.items()}


def parse_mpirun(words: Sequence[str], parse_inner: Callable[[Sequence[str]], LaunchPlan]) -> LaunchPlan:
    """Read the words after `mpirun`; `parse_inner` reads the command that it starts."""
    parsed = _TABLE.parse(words)
    parsed.require_script()
    inner = parse_inner(parsed.rest)
    slots = _slots(parsed)
    num_nodes, num_ranks = len(slots) or None, parsed.count("np")
    plan = nested_plan(
        inner,
        launcher="mpirun",
        num_nodes=num_nodes,
        tasks_per_node=_per_node(parsed, slots, num_ranks),
        num_tasks=num_ranks,
    )
    layers = (MpiEnvironment(is_agent=not inner.is_plain), FixedEnvironment(_exported(parsed)), inner.environment)
    return replace(plan, environment=LayeredEnvironment(layers))


def _per_node(parsed: ParsedOptions, slots: Sequence[int], num_ranks: int | None) -> int | None:
    """Return the processes per node: of --npernode, of `--map-by ppr:8:node`, or of hosts with equal slots."""
    per_node = parsed.count("npernode")
    mapped = re.match(r"ppr:(\d+):node", parsed.get("map_by") or "")
    if per_node is None and mapped:
        per_node = int(mapped[1])
    if per_node is None and slots and num_ranks is None:
        if len(set(slots)) > 1:
            raise LaunchError(f"every host must have the same number of slots, but got {slots}; make them equal")
        per_node = slots[0]
    return per_node


def _slots(parsed: ParsedOptions) -> list[int]:
    """Return the slots of each host, of `--host a:8,b:8` or of a hostfile with lines such as `a slots=8`."""
    hosts = parsed.get("host")
    if hosts is not None:
        return [parse_count(host.partition(":")[2] or "1", "mpirun --host") for host in hosts.split(",")]
    file = parsed.get("hostfile")
    if file is None:
        return []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise LaunchError(
            f"the hostfile must be readable, but '{file}' is not ({error.strerror}); check the path"
        ) from None
    lines = [line.split("#")[0].strip() for line in lines]
    slots = [re.search(r"slots\s*=\s*(\d+)", line) for line in lines if line]
    return [int(number[1]) if number else 1 for number in slots]


def _exported(parsed: ParsedOptions) -> dict[str, str]:
    """Return the variables of `-x NAME=value`, and of `-x NAME` those of this environment."""
    variables = {}
    for text in parsed.all("x"):
        name, is_set, value = text.partition("=")
        if is_set or name in os.environ:
            variables[name] = value if is_set else os.environ[name]
    return variables
