"""Settings of a Sandblaster job: the same in every process. A process's role follows from its rank."""

import enum
from dataclasses import dataclass

from sandtable.errors import MethodError
from sandtable.methods.server.message import Identity
from sandtable.methods.server.roles import rank_and_world
from sandtable.methods.server.settings import ParameterServer

__all__ = ["COORDINATOR", "Sandblaster", "SandblasterRole"]

COORDINATOR = 0
"""The coordinator's number among the servers' callers; replicas are 1, 2, ..."""


class SandblasterRole(enum.StrEnum):
    """The role of a process in the job."""

    COORDINATOR = "coordinator"
    REPLICA = "replica"
    SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Sandblaster:
    """Rank 0 coordinates, the last `shards` ranks hold the vectors, and those between are replicas.

    `addresses`: "host:port" of each shard, then of the coordinator. Without them servers take a free port and announce
    it in torch's store. `timeout_s`: how long to wait without a sign of life, and for a portion, before an error.
    """

    shards: int = 1
    addresses: tuple[str, ...] | None = None
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise MethodError(f"shards must be 1 or more, but got {self.shards}; give the number of server processes")
        if self.addresses is not None and len(set(self.addresses)) != self.shards + 1:
            raise MethodError(
                f"addresses must be of each shard ({self.shards}) and of the coordinator, but got {self.addresses}; "
                "list each once, the coordinator's last"
            )
        if not self.timeout_s > 0:
            raise MethodError(f"timeout_s must be above 0, but got {self.timeout_s}; 60 suits most jobs")

    @property
    def endpoints(self) -> ParameterServer:
        """The endpoints that listen: the shards, and after them the coordinator."""
        return ParameterServer(shards=self.shards + 1, addresses=self.addresses, timeout_s=self.timeout_s)

    @property
    def role(self) -> SandblasterRole:
        rank, world = _rank_in(self.shards)
        if rank == COORDINATOR:
            return SandblasterRole.COORDINATOR
        return SandblasterRole.SERVER if rank >= world - self.shards else SandblasterRole.REPLICA

    @property
    def shard(self) -> int:
        """The shard that this rank holds."""
        rank, world = _rank_in(self.shards)
        if rank < world - self.shards:
            raise MethodError(
                f"a server must be one of the last {self.shards} ranks of {world}, but this is rank {rank}; "
                "call serve_vectors on servers only, or give shard="
            )
        return rank - (world - self.shards)

    @property
    def replica(self) -> int:
        """The number of this rank's replica, 1 or more."""
        if self.role is not SandblasterRole.REPLICA:
            raise MethodError(
                f"this rank is the {self.role}, not a replica; call run_replica on replicas only, or give replica="
            )
        return _rank_in(self.shards)[0]

    def identity(self, endpoint: int, digest: str = "") -> Identity:
        """Return what two sides must agree on. The coordinator holds no parameters, so it has no digest of a model."""
        return Identity(shard=endpoint, digest=digest, sync=f"Sandblaster(shards={self.shards})", compression="None")


def _rank_in(shards: int) -> tuple[int, int]:
    rank, world = rank_and_world()
    if world < shards + 2:
        raise MethodError(
            f"a job needs a coordinator, a replica or more and one rank per shard ({shards}), but has {world} ranks; "
            f"start {shards + 2} or more, or use fewer shards"
        )
    return rank, world
