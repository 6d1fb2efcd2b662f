"""Settings: the job a launcher runs, and the part of it that one captured rank needs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandtable.cluster import Cluster, Device
from sandtable.errors import LaunchError
from sandtable.vgpu.classes import Limits

__all__ = ["Job", "RankSettings", "RankTask", "ScriptSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """One rank as torchrun would start it, and where its capture stops. `group_rank` is the number of its node."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    group_rank: int
    num_steps: int
    max_operators: int
    device: Device
    gpus_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings:
    """What all ranks of a launch share: the script, and the environment and working directory of the launch."""

    script: str
    is_module: bool
    script_args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """What the fork server needs to start one rank; `environment` is what torchrun adds."""

    settings: RankSettings
    environment: Mapping[str, str]
    records_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A script to capture. `script` is a path, or a module's name if `is_module`.

    `ranks` selects the ranks to run: "auto" finds the classes of equal ranks, "all" runs every rank, and a tuple
    exactly the ranks it names. `command` is the command line kept in the trace; by default script and arguments.
    """

    script: str
    script_args: tuple[str, ...] = ()
    is_module: bool = False
    world_size: int
    nproc_per_node: int
    cluster: Cluster
    num_steps: int = 3
    max_operators: int = 1_000_000
    ranks: Literal["auto", "all"] | tuple[int, ...] = "auto"
    command: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("world_size", "nproc_per_node", "num_steps", "max_operators"):
            if getattr(self, name) < 1:
                raise LaunchError(f"{name} must be at least 1, but got {getattr(self, name)}; give a positive number")
        if self.world_size % self.nproc_per_node:
            raise LaunchError(
                f"processes per node ({self.nproc_per_node}) must divide the world size ({self.world_size}); "
                f"every node starts the same number of ranks"
            )
        self.cluster.require(self.world_size, processes_per_node=self.nproc_per_node)
        if not isinstance(self.ranks, tuple) and self.ranks not in ("auto", "all"):
            raise LaunchError(f"ranks must be auto, all or a list of ranks, but got {self.ranks!r}; try auto")
        if isinstance(self.ranks, tuple):
            outside = [str(rank) for rank in self.ranks if not 0 <= rank < self.world_size]
            if outside or not self.ranks:
                raise LaunchError(
                    f"ranks must be between 0 and {self.world_size - 1}, but got {', '.join(outside) or 'none'}; "
                    "name ranks of this world"
                )
        if not self.is_module and not os.path.exists(self.script):
            raise LaunchError(
                f"the script must be a file, but '{self.script}' does not exist; check the path, or use -m for a module"
            )
        if not self.is_module and os.path.isdir(self.script) and "__main__.py" not in os.listdir(self.script):
            raise LaunchError(
                f"the script must be a file, but '{self.script}' is a directory without __main__.py; name a file in it"
            )

    @property
    def num_nodes(self) -> int:
        return self.world_size // self.nproc_per_node

    @property
    def first_ranks(self) -> set[int]:
        """The ranks to start with: rank 0 leads to all others that matter."""
        if self.ranks == "auto":
            return {0}
        return set(range(self.world_size)) if self.ranks == "all" else set(self.ranks)

    def rank_settings(self, rank: int) -> RankSettings:
        return RankSettings(
            rank=rank,
            local_rank=rank % self.nproc_per_node,
            world_size=self.world_size,
            local_world_size=self.nproc_per_node,
            group_rank=rank // self.nproc_per_node,
            num_steps=self.num_steps,
            max_operators=self.max_operators,
            device=self.cluster.device_of(rank, processes_per_node=self.nproc_per_node),
            gpus_per_node=self.cluster.gpus_per_node,
        )

    def environment(self, rank: int, *, master_port: int) -> dict[str, str]:
        """Return the variables that torchrun sets for a rank."""
        values: dict[str, str | int] = {
            "RANK": rank,
            "LOCAL_RANK": rank % self.nproc_per_node,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.nproc_per_node,
            "GROUP_RANK": rank // self.nproc_per_node,
            "GROUP_WORLD_SIZE": self.num_nodes,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": self.world_size,
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": master_port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        }
        return {name: str(value) for name, value in values.items()}
