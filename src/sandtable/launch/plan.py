"""The launch plan: what a command would start, on how many nodes, and with which environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandtable.errors import LaunchError
from sandtable.launch.environment import FixedEnvironment, LauncherEnvironment

__all__ = ["LaunchPlan", "World"]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How many ranks there are: the same number on each node."""

    num_nodes: int
    ranks_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What a launch command starts. A number that the command leaves open is None: the cluster decides.

    `num_ranks` is the number on all nodes together, which some launchers take instead of a number per node. `is_plain`
    holds where plain `python` runs the script: another launcher around it, such as srun, then decides how often.
    """

    launcher: str
    script: str
    script_args: tuple[str, ...] = ()
    is_module: bool = False
    is_plain: bool = False
    num_nodes: int | None = None
    ranks_per_node: int | None = None
    num_ranks: int | None = None
    environment: LauncherEnvironment = field(default_factory=FixedEnvironment)

    def __post_init__(self) -> None:
        for name in ("num_nodes", "ranks_per_node", "num_ranks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LaunchError(
                    f"{self.launcher} must start at least one rank, but {name} is {value}; give 1 or more"
                )

    def world(self, *, num_nodes: int, gpus_per_node: int) -> World:
        """Return the number of ranks on a cluster of `num_nodes`, as far as the command leaves it open."""
        if self.num_ranks is None:
            return World(
                num_nodes=num_nodes if self.num_nodes is None else self.num_nodes,
                ranks_per_node=gpus_per_node if self.ranks_per_node is None else self.ranks_per_node,
            )
        ranks_per_node = self.ranks_per_node
        if ranks_per_node is None:
            nodes = self.num_nodes
            ranks_per_node = min(self.num_ranks, gpus_per_node) if nodes is None else self.num_ranks // nodes
        nodes = self.num_ranks // max(ranks_per_node, 1) if self.num_nodes is None else self.num_nodes
        if nodes * ranks_per_node != self.num_ranks:
            raise LaunchError(
                f"every node must have the same number of ranks, but {self.launcher} starts {self.num_ranks} on "
                f"{max(nodes, 1)} nodes with {gpus_per_node} GPUs each; give a multiple of the ranks per node"
            )
        return World(num_nodes=nodes, ranks_per_node=ranks_per_node)

    def require(self, world: World, *, num_nodes: int | None, ranks_per_node: int | None) -> None:
        """Reject numbers given besides the command that contradict it."""
        for option, given, planned in (
            ("--nnodes", num_nodes, world.num_nodes),
            ("--nproc-per-node", ranks_per_node, world.ranks_per_node),
        ):
            if given is not None and given != planned:
                raise LaunchError(
                    f"{option} must agree with the launch command, but got {given} where {self.launcher} says "
                    f"{planned}; leave {option} out, or change the command"
                )
