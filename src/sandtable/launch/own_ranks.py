"""What a script finds that no launcher tells a rank, and what it gives the ranks it starts itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandtable.launch.environment import LauncherEnvironment, RankPlace

__all__ = ["NodeEnvironment", "OwnEnvironment"]


@dataclass(frozen=True, slots=True)
class NodeEnvironment(LauncherEnvironment):
    """The variables that people set by hand to run a script once per node."""

    def variables(self, place: RankPlace) -> dict[str, str]:
        return {"NODE_RANK": str(place.node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(place.master_port)}


@dataclass(frozen=True, slots=True)
class OwnEnvironment(LauncherEnvironment):
    """The variables that the script itself gives the ranks of a node, by local rank, as it did on the first node."""

    of_local_rank: tuple[Mapping[str, str], ...]

    def variables(self, place: RankPlace) -> dict[str, str]:
        return {**self.of_local_rank[place.local_rank], "NODE_RANK": str(place.node)}
