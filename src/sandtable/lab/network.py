"""Build the hosts, links and switches of a plan, and remove them.

    host0 eth0 ──── port0 ┐                        Everything lives in the lab's own namespaces: one per host, and one
    host1 eth0 ──── port1 ┤ bridge (the switch)    for the switches. The machine's interfaces, routes and firewall stay
    host2 eth0 ──── port2 ┘                        untouched, and two labs never see each other.

A link is shaped at both ends: at the host's end for what it sends, at the switch's end for what it receives. With
sites, each site is a bridge, and a link shaped the same way connects it to a central bridge.

Namespaces are named `sandtable-<pid>-<start>-<number>-<host>` after the process that owns the lab and the time it
started: process ids are reused, but not with the same start time. So any process can tell whether the owner is alive.
"""

import contextlib
import itertools
import os
import re
import shutil
import socket
from pathlib import Path

from sandtable.lab import iproute
from sandtable.lab.plan import LabPlan

__all__ = ["HOSTS_FILES", "INTERFACE", "LabNetwork", "is_abandoned", "new_prefix", "remove_namespace"]

INTERFACE = "eth0"
HOSTS_FILES = Path("/etc/netns")
"""Where `ip netns exec` finds a namespace's own files of /etc."""

SEGMENT_BYTES = 16_000
"""The largest piece the kernel passes to a link at once, as to a network card that splits it into packets itself."""

_CENTRE = "middle"
_CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
_OWNER = re.compile(r"^sandtable-(\d+)-(\d+)-\d+-")
_lab_numbers = itertools.count()


class LabNetwork:
    """The namespaces of one lab. `build` creates them; `remove` removes those there are, even after a failed build."""

    def __init__(self, plan: LabPlan) -> None:
        self.plan = plan
        self.prefix = new_prefix()
        self.switches = f"{self.prefix}switches"
        self.namespaces = tuple(f"{self.prefix}{host.name}" for host in plan.hosts)
        self.addresses = tuple(f"10.83.0.{number}" for number in range(1, len(plan.hosts) + 1))

    def build(self) -> None:
        """Create everything. The caller removes it again, even after an error halfway."""
        iproute.call("ip", "netns", "add", self.switches)
        self._add_bridges()
        for index, host in enumerate(self.plan.hosts):
            self._add_host(index)
            if host.bandwidth_bytes_per_s:
                self._shape(self.namespaces[index], INTERFACE, host.bandwidth_bytes_per_s)
                self._shape(self.switches, f"port{index}", host.bandwidth_bytes_per_s)
        self._add_neighbours()

    def remove(self) -> None:
        """Remove every namespace that exists."""
        for namespace in (*self.namespaces, self.switches):
            remove_namespace(namespace)

    def traffic(self) -> dict[str, iproute.HostTraffic]:
        """Read the counters of each host's interface and of each site's link, as seen from the site."""
        traffic = {
            host.name: iproute.read_traffic(namespace, INTERFACE)
            for host, namespace in zip(self.plan.hosts, self.namespaces, strict=True)
        }
        for index, site in enumerate(self.plan.sites):
            traffic[site.name] = iproute.read_traffic(self.switches, f"up{index}")
        return traffic

    def set_link(self, host: int, *, is_up: bool) -> None:
        """Connect a host's link to its switch, or disconnect it."""
        self._in_switches("link", "set", f"port{host}", "up" if is_up else "down")

    def _add_bridges(self) -> None:
        """Add one bridge, or with sites one per site and a central one."""
        self._add_bridge(_CENTRE)
        for index, site in enumerate(self.plan.sites):
            up, down = f"up{index}", f"down{index}"
            self._add_bridge(f"site{index}")
            self._in_switches("link", "add", up, "type", "veth", "peer", "name", down)
            self._connect(up, f"site{index}")
            self._connect(down, _CENTRE)
            if site.bandwidth_bytes_per_s:
                self._shape(self.switches, up, site.bandwidth_bytes_per_s)
                self._shape(self.switches, down, site.bandwidth_bytes_per_s)

    def _add_bridge(self, name: str) -> None:
        # No spanning tree: there are no loops, and it would block a port for its first 30 s.
        self._in_switches("link", "add", name, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
        self._in_switches("link", "set", name, "up")

    def _add_host(self, index: int) -> None:
        namespace, address = self.namespaces[index], self.addresses[index]
        port = f"port{index}"
        self._write_hosts_file(index)
        iproute.call("ip", "netns", "add", namespace)
        iproute.call("ip", "-n", namespace, "link", "set", "lo", "up")
        ends = ("link", "add", port, "netns", self.switches, "type", "veth", "peer", "name", INTERFACE)
        iproute.call("ip", *ends, "netns", namespace)
        self._connect(port, self._bridge_of(index))
        iproute.call("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", INTERFACE)
        # Segments small enough to pass a token bucket whole: splitting them there would cost processor time.
        size = str(SEGMENT_BYTES)
        iproute.call("ip", "-n", namespace, "link", "set", INTERFACE, "gso_max_size", size)
        iproute.call("ip", "-n", namespace, "link", "set", INTERFACE, "address", _hardware_address(index))
        iproute.call("ip", "-n", namespace, "link", "set", INTERFACE, "up")
        self._choose_congestion_control(namespace)

    def _add_neighbours(self) -> None:
        """Give every host the hardware address of every other as a permanent entry.

        Learned addresses go into a table that all namespaces of a machine share, usually of 1024 entries: from 33
        hosts on (33 × 32 entries) some would find no route to others. Permanent entries do not count.
        """
        for own, namespace in enumerate(self.namespaces):
            others = [index for index in range(len(self.namespaces)) if index != own]
            iproute.call_many(
                namespace,
                [
                    f"neigh add {self.addresses[index]} lladdr {_hardware_address(index)} dev {INTERFACE} nud permanent"
                    for index in others
                ],
            )

    def _choose_congestion_control(self, namespace: str) -> None:
        """Use the kernel's default where this machine prefers another: BBR, for one, pauses to measure."""
        iproute.try_call("ip", "netns", "exec", namespace, "sh", "-c", f"echo cubic >{_CONGESTION_CONTROL}")

    def _bridge_of(self, index: int) -> str:
        names = [site.name for site in self.plan.sites]
        return f"site{names.index(self.plan.hosts[index].site)}" if names else _CENTRE

    def _write_hosts_file(self, index: int) -> None:
        """Write the names that resolve inside the host: all hosts, and this machine's own name for the host itself."""
        rows = [f"{address} {host.name}" for host, address in zip(self.plan.hosts, self.addresses, strict=True)]
        directory = HOSTS_FILES / self.namespaces[index]
        directory.mkdir(parents=True)
        own = f"{self.addresses[index]} {socket.gethostname()}"
        (directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *rows, own, ""]))

    def _connect(self, interface: str, bridge: str) -> None:
        self._in_switches("link", "set", interface, "master", bridge)
        self._in_switches("link", "set", interface, "up")

    def _shape(self, namespace: str, interface: str, bytes_per_s: float) -> None:
        """Limit what leaves by this interface to this rate, with a token bucket.

        The bucket holds 1 ms of data, at least one segment, so that a burst after silence gains next to nothing. The
        queue before it holds 200 ms, so that packets of many senders to one receiver wait instead of being dropped.
        """
        burst_bytes = max(SEGMENT_BYTES + 1000, round(bytes_per_s * 0.001))
        queue_bytes = max(16_000_000, round(bytes_per_s * 0.2))
        add_bucket = ("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf")
        rate = f"{round(bytes_per_s * 8)}bit"
        iproute.call(*add_bucket, "rate", rate, "burst", str(burst_bytes), "limit", str(queue_bytes))

    def _in_switches(self, *words: str) -> None:
        iproute.call("ip", "-n", self.switches, *words)


def new_prefix() -> str:
    """Return a prefix for names that no other lab on this machine uses and that names this process as the owner."""
    return f"sandtable-{os.getpid()}-{_start_time(os.getpid())}-{next(_lab_numbers)}-"


def is_abandoned(name: str) -> bool:
    """Return whether `name` belongs to a lab whose owner is dead."""
    match = _OWNER.match(name)
    return match is not None and _start_time(int(match[1])) != match[2]


def _start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if it does not exist or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The second field is the program's name in brackets, and may contain blanks and brackets itself.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _hardware_address(index: int) -> str:
    """Return a locally administered address (its second bit is set)."""
    return f"02:53:00:00:00:{index:02x}"


def remove_namespace(name: str) -> None:
    """Remove a namespace with its links, and its hosts file, if they exist."""
    iproute.try_call("ip", "netns", "delete", name)
    shutil.rmtree(HOSTS_FILES / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(HOSTS_FILES)  # only when empty: others may keep files there
