"""Parameter-server jobs for tests: real processes that can be killed, restarted and added, and none left afterwards."""

import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tests.forking import context
from torch._C._distributed_c10d import Store, TCPStore

__all__ = ["Job", "Process", "job", "store_at"]

_TIMEOUT_S = 40.0


class Process:
    """One process of a job."""

    def __init__(self, process: BaseProcess, reader: Connection) -> None:
        self._process = process
        self._reader = reader

    def result(self, timeout_s: float = _TIMEOUT_S) -> Any:
        """Return what its function returned; raise its exception, as text, as an AssertionError."""
        assert self._reader.poll(timeout_s), f"{self._process.name} did not finish within {timeout_s} s"
        succeeded, value = pickle.loads(self._reader.recv_bytes())
        self._process.join(5)
        assert succeeded, f"{self._process.name} failed:\n{value}"
        return value

    def error(self, timeout_s: float = _TIMEOUT_S) -> str:
        """Return the traceback of a process that must fail."""
        assert self._reader.poll(timeout_s), f"{self._process.name} did not finish within {timeout_s} s"
        succeeded, value = pickle.loads(self._reader.recv_bytes())
        self._process.join(5)
        assert not succeeded, f"{self._process.name} returned {value}"
        return str(value)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.join(5)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(5)


class Job:
    """Starts processes and keeps the store in which they find each other."""

    def __init__(self) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._context = context()
        self._processes: list[Process] = []

    def start(self, function: Callable[..., Any], *args: Any) -> Process:
        """Call `function(port, *args)` in a new process; `store_at(port)` is the job's store there."""
        reader, writer = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_run, args=(writer, function, self.store.port, args), name=f"{function.__name__}{args}"
        )
        process.start()
        writer.close()
        self._processes.append(Process(process, reader))
        return self._processes[-1]

    def wait_for(self, key: str, value: int, timeout_s: float = 20.0) -> None:
        """Wait until processes have counted `key` up to `value` with `store.add(key, 1)`."""
        deadline = time.monotonic() + timeout_s
        while self.store.add(key, 0) < value:
            assert time.monotonic() < deadline, f"{key} is {self.store.add(key, 0)}, not {value}, after {timeout_s} s"
            time.sleep(0.02)

    def end(self) -> list[str]:
        """Kill what is left, and return the names of what should have ended by itself."""
        left = [process._process.name for process in self._processes if process.is_alive]
        for process in self._processes:
            process.end()
        return left


@contextmanager
def job() -> Iterator[Job]:
    """Run a job that must leave no process behind."""
    made = Job()
    try:
        yield made
    except BaseException:
        made.end()
        raise
    time.sleep(0.05)
    left = made.end()
    assert not left, f"left running: {left}"


def store_at(port: int) -> Store:
    return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))


def _run(writer: Connection, function: Callable[..., Any], port: int, args: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        answer = pickle.dumps((True, function(port, *args)))
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    writer.send_bytes(answer)
    writer.close()
    # Sockets and threads that a failed function left open die here, as with any process that ends.
    os._exit(0)
