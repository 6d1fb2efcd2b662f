"""Roles: which processes of the job are workers, and which hold a shard."""

import os
from dataclasses import dataclass

import torch.distributed as dist

from sandtable.errors import MethodError

__all__ = ["Role", "rank_and_world", "role_here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The role of a process: a server has a `shard`, a worker a `worker` number from 0; the other is None."""

    worker: int | None = None
    shard: int | None = None
    num_workers: int

    @property
    def is_server(self) -> bool:
        return self.shard is not None


def role_here(*, shards: int, servers: tuple[int, ...] | None) -> Role:
    """Derive the role from `torchrun --role server` or `--role worker`, else by rank: the last `shards` ranks serve."""
    rank, world = rank_and_world()
    num_workers = world - shards
    if num_workers < 1:
        raise MethodError(
            f"a job needs one rank per shard ({shards}) and at least one worker, but has {world} ranks; "
            f"start {shards + 1} or more, or use fewer shards"
        )
    name = os.environ.get("ROLE_NAME", "")
    if servers is None and name in ("server", "worker"):
        index, size = int(os.environ["ROLE_RANK"]), int(os.environ["ROLE_WORLD_SIZE"])
        wanted = shards if name == "server" else num_workers
        if size != wanted:
            raise MethodError(
                f"torchrun --role {name} must start {wanted} ranks for {shards} shards in a world of {world}, "
                f"but started {size}; change --nproc-per-node or shards"
            )
        return _role(index, name == "server", num_workers)
    serving = servers if servers is not None else tuple(range(num_workers, world))
    if not all(0 <= server < world for server in serving):
        raise MethodError(f"servers must be ranks of the job (0 to {world - 1}), but got {serving}")
    if rank in serving:
        return _role(serving.index(rank), True, num_workers)
    return _role(sum(1 for other in range(rank) if other not in serving), False, num_workers)


def _role(index: int, is_server: bool, num_workers: int) -> Role:
    return Role(worker=None if is_server else index, shard=index if is_server else None, num_workers=num_workers)


def rank_and_world() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except KeyError as missing:
        raise MethodError(
            f"a process must know its rank, but {missing.args[0]} is not set; start it with torchrun, "
            "or give worker= on workers, role=Role(shard=0, num_workers=2) on servers"
        ) from None
