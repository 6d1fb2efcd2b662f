"""The lab: build the hosts, run a command on each, count their traffic, and remove them."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sandtable.cluster import Cluster
from sandtable.errors import LabError
from sandtable.lab import cores as processors
from sandtable.lab import hosts
from sandtable.lab.cleanup import end_processes, remove_abandoned_labs
from sandtable.lab.interruption import signals_raise, uninterrupted
from sandtable.lab.iproute import HostTraffic
from sandtable.lab.network import INTERFACE, LabNetwork
from sandtable.lab.plan import LabPlan, plan_for
from sandtable.lab.requirements import require
from sandtable.lab.torchrun import TorchrunNode, command_for, environment_for

__all__ = ["HostResult", "Lab", "LabResult"]

_GRACE_S = 3.0
"""Between SIGTERM and SIGKILL for the processes on the hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """How the command ended on one host. A negative `exit_code` is the signal that ended it."""

    name: str
    exit_code: int
    traffic: HostTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class LabResult:
    """One run: how it ended, how long it took, and the traffic of hosts and sites."""

    hosts: tuple[HostResult, ...]
    sites: Mapping[str, HostTraffic]
    seconds: float
    in_time: bool

    @property
    def exit_code(self) -> int:
        """Return 0 if the command succeeded on every host, else the first failure's code, as a shell reports it."""
        code = next((host.exit_code for host in self.hosts if host.exit_code), 0)
        return code if code >= 0 else 128 - code


class Lab:
    """Hosts on this machine: one per node of a cluster, or as planned.

    Use it as a context manager to run several commands, or call `run` directly for one. `cores` is each host's share
    of the processors where a cluster is given (0: unlimited).

    Opening a lab first removes what a killed one left behind. Closing it ends every process on its hosts and removes
    them. After a SIGKILL the kernel ends the processes, and the next lab removes the rest.
    """

    def __init__(self, cluster: Cluster | LabPlan, *, cores: float = 0.0) -> None:
        self.plan = cluster if isinstance(cluster, LabPlan) else plan_for(cluster, cores=cores)
        self._network: LabNetwork | None = None
        self._groups: list[Path | None] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Lab":
        require()
        remove_abandoned_labs()
        with contextlib.ExitStack() as stack:
            stack.enter_context(signals_raise())
            network = LabNetwork(self.plan)
            stack.callback(_remove, network)
            network.build()
            self._groups = [
                processors.create_group(name, host.cores) if host.cores else None
                for host, name in zip(self.plan.hosts, network.namespaces, strict=True)
            ]
            self._network = network
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._network = None
        self._open.close()

    def run(
        self,
        command: Sequence[str],
        *,
        show: hosts.Show | None = None,
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> LabResult:
        """Run a command once on each host, at the same time; torchrun gets the options that make each host a node."""
        if self._network is None:
            with self:
                return self.run(command, show=show, timeout_s=timeout_s, environment=environment)
        before, start_s = self._network.traffic(), time.perf_counter()
        processes: list[hosts.HostProcess] = []
        try:
            for index in range(len(self.plan.hosts)):
                processes.append(self._start(self._network, index, command, environment or {}))
            in_time = hosts.follow(processes, show=show or _print_line, timeout_s=timeout_s)
        finally:
            with uninterrupted():
                end_processes(self._network.namespaces, grace_s=_GRACE_S)
                for process in processes:
                    process.popen.wait()
        seconds, after = time.perf_counter() - start_s, self._network.traffic()
        return LabResult(
            hosts=tuple(
                HostResult(
                    name=process.host,
                    exit_code=process.popen.returncode,
                    traffic=after[process.host] - before[process.host],
                )
                for process in processes
            ),
            sites={site.name: after[site.name] - before[site.name] for site in self.plan.sites},
            seconds=seconds,
            in_time=in_time,
        )

    @contextlib.contextmanager
    def cut(self, host: int) -> Iterator[None]:
        """Disconnect a host (by index) inside the block: packets are lost, not refused. Use it from another thread."""
        if self._network is None or not 0 <= host < len(self.plan.hosts):
            raise LabError(
                f"the link to cut must be of a host (0 to {len(self.plan.hosts) - 1}) of an open lab, but got {host}; "
                "cut inside `with Lab(...)`"
            )
        network = self._network
        network.set_link(host, is_up=False)
        try:
            yield
        finally:
            network.set_link(host, is_up=True)

    def _start(
        self, network: LabNetwork, index: int, command: Sequence[str], extra: Mapping[str, str]
    ) -> hosts.HostProcess:
        host = self.plan.hosts[index]
        node = TorchrunNode(
            index=index,
            num_hosts=len(self.plan.hosts),
            address=network.addresses[index],
            master_address=network.addresses[0],
            interface=INTERFACE,
        )
        share = host.cores or processors.num_cores() / len(self.plan.hosts)
        return hosts.start(
            host.name,
            command_for(command, node),
            namespace=network.namespaces[index],
            group=self._groups[index],
            environment={**environment_for(node, threads=max(1, int(share))), **extra},
        )


def _remove(network: LabNetwork) -> None:
    with uninterrupted():
        end_processes(network.namespaces, grace_s=_GRACE_S)
        network.remove()
        for name in network.namespaces:
            processors.remove_group(name)


def _print_line(host: str, line: str) -> None:
    print(f"[{host}] {line}", flush=True)
