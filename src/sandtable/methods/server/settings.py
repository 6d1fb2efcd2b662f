"""Settings of a parameter server: small, comparable, and the same in every process of the job."""

from dataclasses import dataclass
from pathlib import Path

from sandtable.errors import MethodError
from sandtable.methods.server.roles import Role, role_here

__all__ = ["Checkpoints", "ParameterServer"]


@dataclass(frozen=True, kw_only=True)
class ParameterServer:
    """Exchange through servers that hold the weights: `shards` processes, each with its part of every dtype.

    `servers`: ranks that serve, one per shard; the last ones unless given, or those of `torchrun --role server`.
    `addresses`: "host:port" of each shard. Without them servers take a free port and announce it in torch's store.
    `cut`: whether a parameter may be split between servers; use False for optimizers on whole matrices (Muon, LARS).
    `timeout_s`: how long to wait without a sign of life before an error names the peer.
    """

    shards: int = 1
    servers: tuple[int, ...] | None = None
    addresses: tuple[str, ...] | None = None
    cut: bool = True
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise MethodError(f"shards must be 1 or more, but got {self.shards}; give the number of server processes")
        for name, given in (("servers", self.servers), ("addresses", self.addresses)):
            if given is not None and len(set(given)) != self.shards:
                raise MethodError(
                    f"{name} must name one process per shard ({self.shards}), but got {given}; list each shard's once"
                )
        if not self.timeout_s > 0:
            raise MethodError(f"timeout_s must be above 0, but got {self.timeout_s}; 60 suits most jobs")

    @property
    def role(self) -> Role:
        """The role of this process, by its rank or by torchrun's role."""
        return role_here(shards=self.shards, servers=self.servers)


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Where a server saves its shard, and how often: after every `every`-th update.

    An update is acknowledged only when it has been applied and, if it is the `every`-th, is on disk. So a server that
    is killed and restarted with the same directory has lost at most `every - 1` acknowledged updates, and with
    `every=1` none. The restarted server must be able to reach the directory.
    """

    directory: str | Path
    every: int = 100

    def __post_init__(self) -> None:
        if self.every < 1:
            raise MethodError(f"every must be 1 or more updates, but got {self.every}; 1 loses nothing and is slowest")
