"""Where workers run: all on this machine's loopback, or each on a host of the lab."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sandtable.lab import Lab, LabPlan
from sandtable.lab.cores import num_cores
from sandtable.lab.interruption import signals_raise, uninterrupted
from sandtable.study.settings import StudySettings

__all__ = ["ENVIRONMENT", "LabHosts", "LoopbackHosts", "ShowLine", "WorkerHosts", "WorkersExit", "cores_for"]

ShowLine = Callable[[str], None]
"""Called with every line that a worker prints."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # more workers than cores is normal
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",  # threads that share arenas save tens of megabytes per worker
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),  # keep memory from step to step: a third more images per second
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "PYTHONUNBUFFERED": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""Keeps a worker small and quiet."""

_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL for torchrun; the kernel ends its workers with it."""

_LOOK_S = 0.05
"""Between looks at the workers of a launcher that is ending."""

_BYTES_PER_MBIT = 125_000
_LEAST_SHARE = 0.1
"""The smallest share of a core that a control group can hold; with more hosts than that, there is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersExit:
    """How a run ended; `wire_bytes` is the kernel's count of bytes sent per host, on average, where there is one."""

    exit_code: int
    wire_bytes: float | None = None


class WorkerHosts(ABC):
    """A context manager that runs one configuration after the other. Leaving it ends whatever still runs."""

    def __enter__(self) -> "WorkerHosts":
        return self

    @abstractmethod
    def run(self, study: Path, index: int, *, show: ShowLine) -> WorkersExit:
        """Run configuration `index` of the study in that file to its end."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackHosts(WorkerHosts):
    """All workers on this machine, started by torchrun, over a network as fast as memory."""

    workers: int

    def run(self, study: Path, index: int, *, show: ShowLine) -> WorkersExit:
        with signals_raise():
            popen = subprocess.Popen(
                self._command(study, index),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"},
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the others in order
            )
            try:
                assert popen.stdout is not None
                for line in popen.stdout:
                    show(line.rstrip("\n"))
                return WorkersExit(exit_code=popen.wait())
            finally:
                with uninterrupted():
                    _end(popen)

    def _command(self, study: Path, index: int) -> list[str]:
        die_with_parent = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"]
        options = ["--nproc-per-node", str(self.workers), "--master-addr", "127.0.0.1"]
        options += ["--master-port", str(_free_port())]
        worker = ["-m", "sandtable.study.worker", str(study.resolve()), str(index)]
        return [*die_with_parent, *torchrun, *options, *worker]


class LabHosts(WorkerHosts):
    """One worker per host of a lab, which stays open for the whole study; the kernel counts each run's bytes."""

    def __init__(self, settings: StudySettings) -> None:
        plan = LabPlan.uniform(
            settings.workers,
            bandwidth_bytes_per_s=settings.network.rate_mbit * _BYTES_PER_MBIT,
            cores=cores_for(settings, cores=num_cores()),
        )
        self._lab = Lab(plan)

    def __enter__(self) -> "LabHosts":
        self._lab.__enter__()
        return self

    def run(self, study: Path, index: int, *, show: ShowLine) -> WorkersExit:
        # Without torchrun, which would be a second process of the same size on every host.
        command = [sys.executable, "-m", "sandtable.study.worker", str(study.resolve()), str(index)]
        result = self._lab.run(command, show=lambda _, line: show(line), environment=ENVIRONMENT)
        sent = sum(host.traffic.sent_bytes for host in result.hosts)
        return WorkersExit(exit_code=result.exit_code, wire_bytes=sent / len(result.hosts))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lab.__exit__(kind, error, traceback)


def cores_for(settings: StudySettings, *, cores: int) -> float:
    """Return each lab host's processors: as set, or an equal part of this machine's; 0: unlimited."""
    if settings.network.cores_per_host is not None:
        return settings.network.cores_per_host
    part = min(1.0, cores / settings.workers)
    return part if part >= _LEAST_SHARE else 0.0


def _end(popen: "subprocess.Popen[str]") -> None:
    """End the launcher and its workers.

    A launcher that is interrupted while it starts workers forgets them, and a worker that has just been started does
    not yet end with its parent, so they are noted while the launcher runs.
    """
    workers = set(_children(popen.pid))
    if popen.poll() is None:
        popen.terminate()
        deadline = time.monotonic() + _GRACE_S
        while popen.poll() is None and time.monotonic() < deadline:
            workers.update(_children(popen.pid))
            time.sleep(_LOOK_S)
    popen.kill()
    popen.wait()
    for process in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if popen.stdout is not None:
        popen.stdout.close()


def _children(parent: int) -> list[int]:
    """Return the processes that `parent` started and that still run."""
    children = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                children.append(int(entry.name))
    return children


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
