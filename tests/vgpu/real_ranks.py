"""Examples as torchrun would run them, on CPUs with gloo, and what each rank sends the others meanwhile."""

import os
import runpy
import socket
import sys
from pathlib import Path

import torch.distributed as dist
from tests.methods.processes import run
from tests.vgpu.witness import Calls, Message, Witness

__all__ = ["observe"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def observe(script: str | Path, *flags: object, world_size: int) -> list[tuple[Calls, list[Message]]]:
    """The calls and messages of each rank of an example, named by its file, or of a script, given by its path."""
    return run(world_size, _observe, str(EXAMPLES / script), tuple(map(str, flags)))


def _observe(script: str, flags: tuple[str, ...]) -> tuple[Calls, list[Message]]:
    _dress()
    sys.argv = [script, *flags]
    sys.path.insert(0, os.path.dirname(script))
    witness = Witness().watch()
    runpy.run_path(script, run_name="__main__")
    return witness.calls, witness.messages


def _dress() -> None:
    """The environment of torchrun; the group in which the ranks were made is not the script's."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    port = [_free_port()]
    dist.broadcast_object_list(port)
    dist.destroy_process_group()
    for name, value in {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port[0],
    }.items():
        os.environ[name] = str(value)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
