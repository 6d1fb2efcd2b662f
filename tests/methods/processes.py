"""Real ranks for tests: `run(4, function, argument)` calls the function in four processes joined by gloo.

The function is called as `function(*args)` in each of them, with the default process group ready; it must stand at the
top level of a module, and what it returns must pickle. Ranks are forked (see `tests.forking`), so a world starts in a
fraction of a second. A rank that raises ends the world, and its traceback is in the error of the test.
"""

import faulthandler
import os
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from tests.forking import context
from torch._C._distributed_c10d import TCPStore

__all__ = ["RankError", "run"]

_TIMEOUT_S = 60.0


class RankError(AssertionError):
    """A rank raised, died or did not finish in time."""


def run(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Return what `function(*args)` returned on each of `world` ranks, in rank order."""
    server = context()
    processes: list[BaseProcess] = []
    readers: list[Connection] = []
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        for rank in range(world):
            reader, writer = server.Pipe(duplex=False)
            process = server.Process(target=_be_rank, args=(rank, world, store.port, writer, function, args))
            process.start()
            writer.close()
            processes.append(process)
            readers.append(reader)
        results = _collect(readers)
        for finished in processes:
            finished.join(5)
        return results
    finally:
        _end(processes)


def _collect(readers: list[Connection]) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + _TIMEOUT_S
    while len(results) < len(readers):
        missing = [reader for rank, reader in enumerate(readers) if rank not in results]
        ready = wait(missing, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            ranks = [rank for rank in range(len(readers)) if rank not in results]
            raise RankError(f"ranks {ranks} did not finish within {_TIMEOUT_S:.0f} s")
        for rank, reader in enumerate(readers):
            if reader in ready:
                results[rank] = _receive(rank, reader)
    return [results[rank] for rank in range(len(readers))]


def _receive(rank: int, reader: Connection) -> Any:
    try:
        succeeded, value = pickle.loads(reader.recv_bytes())
    except EOFError:
        raise RankError(f"rank {rank} died without a word") from None
    if not succeeded:
        raise RankError(f"rank {rank} failed:\n{value}")
    return value


def _end(processes: list[BaseProcess]) -> None:
    """Kill the ranks that have not answered; the others have ended by themselves."""
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()


def _be_rank(rank: int, world: int, port: int, writer: Connection, function: Callable[..., Any], args: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # A rank that does not finish says where it stands, in the output of the test.
    faulthandler.dump_traceback_later(_TIMEOUT_S - 5)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        timeout = timedelta(seconds=_TIMEOUT_S)
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
        # Pickled by hand: multiprocessing would pass tensors as shared memory, which dies with this process.
        answer = pickle.dumps((True, function(*args)))
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    writer.send_bytes(answer)
    writer.close()
    # A world of which another rank has failed would wait for it in its destructors.
    os._exit(0)
