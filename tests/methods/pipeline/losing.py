"""A world that loses a rank on purpose: `run_and_lose` returns the results of the others."""

import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.forking import context
from tests.methods.processes import _be_rank
from torch._C._distributed_c10d import TCPStore

__all__ = ["run_and_lose"]


def run_and_lose(world: int, victim: int, function: Callable[..., Any], *args: Any) -> dict[int, Any]:
    """Return the results of `function(*args)` on every rank but the victim, which the function itself ends or stops."""
    server = context()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    readers: dict[int, Connection] = {}
    processes = []
    try:
        for rank in range(world):
            reader, writer = server.Pipe(duplex=False)
            process = server.Process(target=_be_rank, args=(rank, world, store.port, writer, function, args))
            process.start()
            writer.close()
            processes.append(process)
            readers[rank] = reader
        answers: dict[int, Any] = {}
        for rank, reader in readers.items():
            if rank != victim:
                assert wait([reader], timeout=60), f"rank {rank} hangs"
                succeeded, value = pickle.loads(reader.recv_bytes())
                assert succeeded, value
                answers[rank] = value
        return answers
    finally:
        for process in processes:
            if process.exitcode is None:
                process.kill()
                process.join()
