"""The lab: built, run, counted and taken down."""

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
from sandtable.lab.cluster_plan import plan_for
from sandtable.lab.counters import Traffic
from sandtable.lab.interruption import signals_end_in_order, undisturbed
from sandtable.lab.leftovers import end_processes, sweep
from sandtable.lab.network import INTERFACE, Network
from sandtable.lab.plan import Plan
from sandtable.lab.requirements import require
from sandtable.lab.torchrun import Seat, command_for, environment_for

__all__ = ["HostResult", "Lab", "LabResult"]

_GRACE_S = 3.0
"""Between asking the processes on the hosts to end and ending them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """How the command ended on one host. A negative `exit_code` is the signal that ended it."""

    name: str
    exit_code: int
    traffic: Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class LabResult:
    """One run: how it ended, how long it took, and what went over the cables, of hosts and of sites."""

    hosts: tuple[HostResult, ...]
    sites: Mapping[str, Traffic]
    seconds: float
    in_time: bool

    @property
    def exit_code(self) -> int:
        """0 if every host's command ended well; else that of the first that did not, as a shell says it."""
        code = next((host.exit_code for host in self.hosts if host.exit_code), 0)
        return code if code >= 0 else 128 - code


class Lab:
    """Hosts on this machine, one a node of a cluster, or as planned.

    Use it as a context to run several commands, or `run` one and be done. `cores` is each host's share of the
    processors where a cluster is given (0: as much as it gets).

    Starting a lab first removes what a killed one left behind. Leaving it, by whatever way, ends every process on its
    hosts and removes them; after a SIGKILL the kernel ends the processes, and the next lab removes the rest.
    """

    def __init__(self, where: Cluster | Plan, *, cores: float = 0.0) -> None:
        self.plan = where if isinstance(where, Plan) else plan_for(where, cores=cores)
        self._network: Network | None = None
        self._doors: list[Path | None] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Lab":
        require()
        sweep()
        with contextlib.ExitStack() as stack:
            stack.enter_context(signals_end_in_order())
            network = Network(self.plan)
            stack.callback(_take_down, network)
            network.build()
            self._doors = [
                processors.confine(name, host.cores) if host.cores else None
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
        """Run a command once on each host, at the same time; torchrun is told which node of how many it is."""
        if self._network is None:
            with self:
                return self.run(command, show=show, timeout_s=timeout_s, environment=environment)
        before, start_s = self._network.traffic(), time.perf_counter()
        processes: list[hosts.Process] = []
        try:
            for index in range(len(self.plan.hosts)):
                processes.append(self._start(self._network, index, command, environment or {}))
            in_time = hosts.follow(processes, show=show or _print_line, timeout_s=timeout_s)
        finally:
            with undisturbed():
                end_processes(self._network.namespaces, grace_s=_GRACE_S)
                for process in processes:
                    process.popen.wait()
        seconds, after = time.perf_counter() - start_s, self._network.traffic()
        return LabResult(
            hosts=tuple(
                HostResult(
                    name=each.host, exit_code=each.popen.returncode, traffic=after[each.host] - before[each.host]
                )
                for each in processes
            ),
            sites={site.name: after[site.name] - before[site.name] for site in self.plan.sites},
            seconds=seconds,
            in_time=in_time,
        )

    @contextlib.contextmanager
    def cut(self, host: int) -> Iterator[None]:
        """The cable of a host (by its number) is out meanwhile: nothing arrives, and nothing is refused either.

        To be used while another thread runs a command.
        """
        if self._network is None or not 0 <= host < len(self.plan.hosts):
            raise LabError(
                f"a cable must be of a host (0 to {len(self.plan.hosts) - 1}) of an open lab, but got {host}"
            )
        network = self._network
        network.plug(host, pulled=True)
        try:
            yield
        finally:
            network.plug(host, pulled=False)

    def _start(self, network: Network, index: int, command: Sequence[str], extra: Mapping[str, str]) -> hosts.Process:
        host = self.plan.hosts[index]
        seat = Seat(
            index=index,
            num_hosts=len(self.plan.hosts),
            address=network.addresses[index],
            master_address=network.addresses[0],
            interface=INTERFACE,
        )
        share = host.cores or processors.num_cores() / len(self.plan.hosts)
        return hosts.start(
            host.name,
            command_for(command, seat),
            namespace=network.namespaces[index],
            group=self._doors[index],
            environment={**environment_for(seat, threads=max(1, int(share))), **extra},
        )


def _take_down(network: Network) -> None:
    with undisturbed():
        end_processes(network.namespaces, grace_s=_GRACE_S)
        network.remove()
        for name in network.namespaces:
            processors.release(name)


def _print_line(host: str, line: str) -> None:
    print(f"[{host}] {line}", flush=True)
