"""Settings: the job a launcher runs, and the part of it that one captured rank needs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandtable.cluster import Cluster, Device
from sandtable.errors import LaunchError
from sandtable.launch import (
    LauncherEnvironment,
    RankPlace,
    TorchrunEnvironment,
    require_module,
    require_script,
    visible_gpus,
)
from sandtable.vgpu.classes import Limits
from sandtable.vgpu.imports import ARGUMENTS, DEVICES
from sandtable.vgpu.marked_function import MarkedFunction, marker_of
from sandtable.vgpu.package_names import REPLACED_PACKAGES
from sandtable.vgpu.real_values.settings import ValueSettings
from sandtable.vgpu.routing import Routing

__all__ = ["Job", "RankSettings", "RankTask", "ScriptSettings"]


MOST_FEW_RANKS = 16
"""Worlds of at most this many ranks are small enough for all of them to run, whatever memory they take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """One rank as its launcher would start it, and where its capture stops.

    `group_rank` is the number of its node, and `num_gpus` how many of that node's GPUs it sees. `has_nvlink`: whether
    they are joined by NVLink.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    group_rank: int
    num_steps: int
    step_marker: str
    max_operators: int
    device: Device
    num_gpus: int
    routing: Routing
    has_nvlink: bool = False
    without: tuple[str, ...] = ()
    costs: str = ""
    observes: bool = True
    follow_seconds: float = 0.0
    num_epochs: int = 0
    values: ValueSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings:
    """What all ranks of a launch share: the script, and the environment and working directory of the launch.

    `rank_variables` are the variables that differ between ranks, and ARGUMENTS or DEVICES if those do.
    """

    script: str
    is_module: bool
    script_args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    rank_variables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """What the fork server needs to start one rank; `environment` and `leading_args` are what its launcher adds.

    `offer_address` is the socket where processes that the script starts offer themselves as ranks; none if empty. With
    `logs_imports` the rank reports what its script imports, so that others need not import it again.
    """

    settings: RankSettings
    environment: Mapping[str, str]
    leading_args: tuple[str, ...] = ()
    records_path: str
    offer_address: str = ""
    logs_imports: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A script to capture. `script` is a path, or a module's name if `is_module`.

    `ranks` selects the ranks to run: "auto" finds the classes of equal ranks, "all" runs every rank, and a tuple
    exactly the ranks it names. `step_marker` names a function as module:function, each of whose returns ends a step.
    Of the `num_steps` steps that are captured, the first `num_skipped_steps` are not timed.
    `command` is the command line kept in the trace; by default script and arguments.
    `launcher_environment` is what the launcher gives each rank: torchrun's variables, or with `FixedEnvironment()`
    none, as when plain `python` runs the script. With `share_imports` the script's libraries are imported once for all
    ranks after the first, where that is safe. `routing` says which experts the routers of a mixture choose. Packages
    named in `without` stay missing if they are not installed. `costs` is a file that describes kernels
    (`sandtable.cost`), run on each rank before the script. With `observes`, what the rules of `check` read is noted.
    After the captured steps the script is followed without records for `follow_seconds`, or with `num_epochs` until its
    data loaders have been read that often, to see whether ranks still meet. Up to `few_ranks` ranks all run under
    "auto" where they cost little. With `values` every tensor has a value, which the ranks save.
    """

    script: str
    script_args: tuple[str, ...] = ()
    is_module: bool = False
    world_size: int
    nproc_per_node: int
    cluster: Cluster
    num_steps: int = 3
    num_skipped_steps: int = 1
    step_marker: str = ""
    max_operators: int = 1_000_000
    ranks: Literal["auto", "all"] | tuple[int, ...] = "auto"
    command: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    launcher_environment: LauncherEnvironment = field(default_factory=TorchrunEnvironment)
    share_imports: bool = True
    routing: Routing = field(default_factory=Routing)
    without: tuple[str, ...] = ()
    costs: str = ""
    observes: bool = True
    follow_seconds: float = 0.0
    num_epochs: int = 0
    few_ranks: int = 0
    values: ValueSettings | None = None

    def __post_init__(self) -> None:
        for name in ("world_size", "nproc_per_node", "num_steps", "max_operators"):
            if getattr(self, name) < 1:
                raise LaunchError(f"{name} must be at least 1, but got {getattr(self, name)}; give a positive number")
        if not 0 < self.num_skipped_steps < max(self.num_steps, 2):
            raise LaunchError(
                f"skipped steps ({self.num_skipped_steps}) must be at least 1 and fewer than the steps to capture "
                f"({self.num_steps}); capture more steps, or skip fewer"
            )
        if self.step_marker:
            MarkedFunction(self.step_marker)  # checks the name
        if self.world_size % self.nproc_per_node:
            raise LaunchError(
                f"processes per node ({self.nproc_per_node}) must divide the world size ({self.world_size}); "
                f"every node starts the same number of ranks"
            )
        self.cluster.require(self.world_size, processes_per_node=self.nproc_per_node)
        if not isinstance(self.ranks, tuple) and self.ranks not in ("auto", "all"):
            raise LaunchError(f"ranks must be auto, all or a list of ranks, but got {self.ranks!r}; try auto")
        self._require_known_packages()
        if self.costs and not os.path.isfile(self.costs):
            raise LaunchError(f"costs must be a Python file, but there is none at {self.costs}")
        if isinstance(self.ranks, tuple):
            outside = [str(rank) for rank in self.ranks if not 0 <= rank < self.world_size]
            if outside or not self.ranks:
                raise LaunchError(
                    f"ranks must be between 0 and {self.world_size - 1}, but got {', '.join(outside) or 'none'}; "
                    "name ranks of this world"
                )
        if self.is_module:
            paths = self.environment(0, master_port=0).get("PYTHONPATH", "")
            require_module(self.script, list(filter(None, paths.split(os.pathsep))))
        else:
            require_script(self.script)

    def _require_known_packages(self) -> None:
        unknown = [name for name in self.without if name not in REPLACED_PACKAGES]
        if unknown:
            raise LaunchError(
                f"a package to leave out must have a replacement, but got {unknown[0]}; "
                f"choose from {', '.join(REPLACED_PACKAGES)}"
            )

    @property
    def num_nodes(self) -> int:
        return self.world_size // self.nproc_per_node

    @property
    def starts_own_ranks(self) -> bool:
        """Whether the script may start its ranks itself: it runs once per node, and is told no rank."""
        return self.nproc_per_node == 1 and "RANK" not in self.environment(0, master_port=0)

    @property
    def first_ranks(self) -> set[int]:
        """The ranks to start with: rank 0 leads to all others that matter."""
        if self.ranks == "auto":
            return {0}
        return set(range(self.world_size)) if self.ranks == "all" else set(self.ranks)

    @property
    def may_run_all(self) -> bool:
        """Whether all ranks should run if that takes only seconds."""
        return self.ranks == "auto" and 1 < self.world_size <= self.few_ranks

    @property
    def may_share_imports(self) -> bool:
        """Whether more than one rank may have to run, none forked by the script."""
        is_one = self.world_size == 1 or (isinstance(self.ranks, tuple) and len(self.ranks) == 1)
        return self.share_imports and not is_one and not self.starts_own_ranks

    @property
    def rank_variables(self) -> tuple[str, ...]:
        """The variables of the environment that differ between ranks; ARGUMENTS and DEVICES if those do."""
        first, last = (self.environment(rank, master_port=0) for rank in (0, self.world_size - 1))
        names = [name for name in first if first[name] != last.get(name)]
        if self.leading_args(0, master_port=0) != self.leading_args(self.world_size - 1, master_port=0):
            names.append(ARGUMENTS)
        if not self.cluster.is_uniform:
            names.append(DEVICES)
        return tuple(names)

    @property
    def _marker(self) -> str:
        """The step marker as given, or as the script's source shows it."""
        if self.step_marker or self.is_module or not os.path.isfile(self.script):
            return self.step_marker
        with open(self.script, encoding="utf-8", errors="replace") as source:
            return marker_of(source.read())

    def rank_settings(self, rank: int) -> RankSettings:
        kind = self.cluster.node_kind_of(rank, processes_per_node=self.nproc_per_node)
        return RankSettings(
            rank=rank,
            local_rank=rank % self.nproc_per_node,
            world_size=self.world_size,
            local_world_size=self.nproc_per_node,
            group_rank=rank // self.nproc_per_node,
            num_steps=self.num_steps,
            step_marker=self._marker,
            max_operators=self.max_operators,
            device=kind.device,
            num_gpus=self._num_visible_gpus(rank),
            has_nvlink=kind.scale_up.kind.startswith("nv"),
            routing=self.routing,
            without=self.without,
            costs=os.path.abspath(self.costs) if self.costs else "",
            observes=self.observes,
            follow_seconds=self.follow_seconds if self.world_size > 1 else 0.0,
            num_epochs=self.num_epochs if self.world_size > 1 else 0,
            values=self.values,
        )

    def _num_visible_gpus(self, rank: int) -> int:
        """Count the GPUs that the launcher leaves to a rank; those of this machine do not matter."""
        visible = visible_gpus(self.environment(rank, master_port=0))
        gpus_per_node = self.cluster.gpus_per_node
        return gpus_per_node if visible is None else min(len(visible), gpus_per_node)

    def environment(self, rank: int, *, master_port: int) -> dict[str, str]:
        """Return the variables that the launcher sets for a rank."""
        return self.launcher_environment.variables(self._place(rank, master_port))

    def leading_args(self, rank: int, *, master_port: int) -> tuple[str, ...]:
        """Return the arguments that the launcher puts before the script's own."""
        return self.launcher_environment.leading_args(self._place(rank, master_port))

    def _place(self, rank: int, master_port: int) -> RankPlace:
        return RankPlace(
            rank=rank, world_size=self.world_size, ranks_per_node=self.nproc_per_node, master_port=master_port
        )
