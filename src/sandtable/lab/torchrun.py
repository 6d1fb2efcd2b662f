"""The command as each host gets it: torchrun with the options that say which node of how many it is."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandtable.errors import LabError

__all__ = ["MASTER_PORT", "Seat", "command_for", "environment_for"]

MASTER_PORT = 29500
"""Free by nature: a lab's namespaces are new."""

_OURS = (
    "--nnodes", "--node-rank", "--master-addr", "--master-port", "--local-addr", "--standalone",
    "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One host's place in the job."""

    index: int
    num_hosts: int
    address: str
    master_address: str
    interface: str


def command_for(command: Sequence[str], seat: Seat) -> list[str]:
    """`torchrun [options] script` with the options for this host; any other command as it is."""
    if not command:
        raise LabError("a command must be given after --, but there is none; try: -- torchrun train.py")
    head = _head(command)
    if head is None:
        return list(command)
    options = command[len(head) :]
    for word in options:
        if not word.startswith("-"):
            break
        if (name := word.partition("=")[0].replace("_", "-")) in _OURS:
            raise LabError(f"{name} must be left to the lab, which gives each host its own; remove it from the command")
    where = {
        "--nnodes": str(seat.num_hosts),
        "--node-rank": str(seat.index),
        "--master-addr": seat.master_address,
        "--master-port": str(MASTER_PORT),
        "--local-addr": seat.address,
    }
    program = _found(head[0]) if len(head) == 1 else head
    return [*program, *(word for pair in where.items() for word in pair), *options]


def environment_for(seat: Seat, *, threads: int) -> dict[str, str]:
    """This process's environment, with sockets on the lab's interface and no more threads than the host has cores."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {
        "OMP_NUM_THREADS": str(threads),
        # Addresses of a lab have no names that torch could look up backwards, and it warns about each.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **os.environ,
        **dict.fromkeys(names, seat.interface),
        "MASTER_ADDR": seat.master_address,
        "MASTER_PORT": str(MASTER_PORT),
        "NODE_RANK": str(seat.index),
        "NNODES": str(seat.num_hosts),
        "PYTHONUNBUFFERED": "1",
    }


def _head(command: Sequence[str]) -> list[str] | None:
    """The words that mean torchrun, if the command starts with them."""
    if Path(command[0]).name == "torchrun":
        return [command[0]]
    if Path(command[0]).name.startswith("python") and list(command[1:3]) == ["-m", "torch.distributed.run"]:
        return list(command[:3])
    return None


def _found(program: str) -> list[str]:
    """torchrun where it is: on the path, or the module of this Python."""
    return [program] if shutil.which(program) else [sys.executable, "-m", "torch.distributed.run"]
