"""What a launcher gives each rank it starts: environment variables, and sometimes an argument.

Scripts and frameworks find out from these variables how they were started, so each launcher sets its own and no
other's: Lightning starts processes itself unless it finds torchrun's or Slurm's, Accelerate reads `ACCELERATE_*`, and a
script run by plain `python` finds none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FixedEnvironment", "LauncherEnvironment", "LayeredEnvironment", "RankPlace", "visible_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank is in the world, and the port at which rank 0 is found."""

    rank: int
    world_size: int
    ranks_per_node: int
    master_port: int

    @property
    def local_rank(self) -> int:
        return self.rank % self.ranks_per_node

    @property
    def node(self) -> int:
        return self.rank // self.ranks_per_node

    @property
    def num_nodes(self) -> int:
        return self.world_size // self.ranks_per_node


class LauncherEnvironment(ABC):
    """What one launcher adds to the environment and the arguments of a rank."""

    __slots__ = ()

    @abstractmethod
    def variables(self, place: RankPlace) -> dict[str, str]:
        """Return the environment variables that the launcher sets for the rank."""

    def leading_args(self, place: RankPlace) -> tuple[str, ...]:
        """Return the arguments that the launcher puts before the script's own."""
        return ()


@dataclass(frozen=True, slots=True)
class FixedEnvironment(LauncherEnvironment):
    """Variables that are the same on every rank; by default none, as when plain `python` runs the script."""

    values: Mapping[str, str] = field(default_factory=dict)

    def variables(self, place: RankPlace) -> dict[str, str]:
        return dict(self.values)


@dataclass(frozen=True, slots=True)
class LayeredEnvironment(LauncherEnvironment):
    """Launchers that start each other, outermost first, such as `srun torchrun`: the innermost has the last word."""

    layers: tuple[LauncherEnvironment, ...]

    def variables(self, place: RankPlace) -> dict[str, str]:
        variables: dict[str, str] = {}
        for layer in self.layers:
            variables.update(layer.variables(place))
        return variables

    def leading_args(self, place: RankPlace) -> tuple[str, ...]:
        return tuple(argument for layer in self.layers for argument in layer.leading_args(place))


def visible_gpus(variables: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to a command; None stands for all of a node's."""
    gpus = tuple(filter(None, variables.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    return gpus or None
