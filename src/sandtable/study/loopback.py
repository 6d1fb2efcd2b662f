"""All workers on this machine, talking over its loopback, started by torchrun."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sandtable.lab.interruption import signals_end_in_order, undisturbed
from sandtable.study.place import ENVIRONMENT, Ended, Place, Show

__all__ = ["Loopback"]

_GRACE_S = 5.0
"""Between asking torchrun to end and ending it; its workers go with it, by the kernel's hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loopback(Place):
    """As fast as memory: what methods cost where the network is no matter."""

    workers: int

    def run(self, study: Path, index: int, *, show: Show) -> Ended:
        with signals_end_in_order():
            popen = subprocess.Popen(
                self._command(study, index),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"},
                start_new_session=True,  # Ctrl-C goes to this process alone, which ends the others in order
            )
            try:
                assert popen.stdout is not None
                for line in popen.stdout:
                    show(line.rstrip("\n"))
                return Ended(exit_code=popen.wait())
            finally:
                with undisturbed():
                    _end(popen)

    def _command(self, study: Path, index: int) -> list[str]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node"]
        where = [str(self.workers), "--master-addr", "127.0.0.1", "--master-port", str(_free_port())]
        bound = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        return [*bound, *torchrun, *where, "-m", "sandtable.study.worker", str(study.resolve()), str(index)]


def _end(popen: "subprocess.Popen[str]") -> None:
    if popen.poll() is None:
        popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(_GRACE_S)
    popen.kill()
    popen.wait()
    if popen.stdout is not None:
        popen.stdout.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
