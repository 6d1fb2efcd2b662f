"""The command each host runs: torchrun with the options that make the host one node of the job."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandtable.errors import LabError

__all__ = ["MASTER_PORT", "TorchrunNode", "command_for", "environment_for"]

MASTER_PORT = 29500
"""Always free: a lab's namespaces are new."""

_SET_BY_LAB = (
    "--nnodes", "--node-rank", "--master-addr", "--master-port", "--local-addr", "--standalone",
    "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunNode:
    """One host as a node of the job."""

    index: int
    num_hosts: int
    address: str
    master_address: str
    interface: str


def command_for(command: Sequence[str], node: TorchrunNode) -> list[str]:
    """Return `torchrun [options] script` with the options for this node; any other command unchanged."""
    if not command:
        raise LabError("a command must be given after --, but there is none; try: -- torchrun train.py")
    head = _torchrun_words(command)
    if head is None:
        return list(command)
    options = command[len(head) :]
    for word in options:
        if not word.startswith("-"):
            break
        if (name := word.partition("=")[0].replace("_", "-")) in _SET_BY_LAB:
            raise LabError(f"{name} must be left to the lab, which sets it for each host; remove it from the command")
    own_options = {
        "--nnodes": str(node.num_hosts),
        "--node-rank": str(node.index),
        "--master-addr": node.master_address,
        "--master-port": str(MASTER_PORT),
        "--local-addr": node.address,
    }
    program = _find_program(head[0]) if len(head) == 1 else head
    return [*program, *(word for pair in own_options.items() for word in pair), *options]


def environment_for(node: TorchrunNode, *, threads: int) -> dict[str, str]:
    """Return this process's environment with sockets on the lab's interface and one thread per core of the host."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {
        "OMP_NUM_THREADS": str(threads),
        # A lab's addresses have no reverse lookup, and torch would warn about each.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **os.environ,
        **dict.fromkeys(names, node.interface),
        "MASTER_ADDR": node.master_address,
        "MASTER_PORT": str(MASTER_PORT),
        "NODE_RANK": str(node.index),
        "NNODES": str(node.num_hosts),
        "PYTHONUNBUFFERED": "1",
    }


def _torchrun_words(command: Sequence[str]) -> list[str] | None:
    """Return the words that start torchrun, if the command begins with them."""
    if Path(command[0]).name == "torchrun":
        return [command[0]]
    if Path(command[0]).name.startswith("python") and list(command[1:3]) == ["-m", "torch.distributed.run"]:
        return list(command[:3])
    return None


def _find_program(program: str) -> list[str]:
    """Return torchrun from the path, or else as a module of this Python."""
    return [program] if shutil.which(program) else [sys.executable, "-m", "torch.distributed.run"]
