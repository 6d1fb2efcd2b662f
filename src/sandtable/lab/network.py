"""Cables, switches and hosts: built from a plan, and taken down again.

    host0 eth0 ──── port0 ┐                        Everything is inside namespaces of the lab's own: one a host, and one
    host1 eth0 ──── port1 ┤ bridge (the switch)    for the switches. The machine's own interfaces, routes and firewall
    host2 eth0 ──── port2 ┘                        are not touched, and two labs never meet.

A cable is slowed at both ends: at the host's end for what it sends, at the switch's end for what it receives. With
sites, each site is a bridge, and a cable slowed the same way joins it to a bridge in the middle.
"""

import contextlib
import os
import shutil
import socket
from pathlib import Path

from sandtable.lab import counters, iproute
from sandtable.lab.names import new_prefix
from sandtable.lab.plan import Plan

__all__ = ["HOSTS_FILES", "INTERFACE", "Network", "remove_namespace"]

INTERFACE = "eth0"
HOSTS_FILES = Path("/etc/netns")
"""Where `ip netns exec` looks for files of /etc that a namespace has of its own."""

SEGMENT_BYTES = 16_000
"""What the kernel hands to the cable in one piece at most, as to a network card that cuts it into packets itself."""

_MIDDLE = "middle"
_CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"


class Network:
    """The namespaces of one lab. `build` makes them, `remove` removes all there are, built to the end or not."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.prefix = new_prefix()
        self.switches = f"{self.prefix}switches"
        self.namespaces = tuple(f"{self.prefix}{host.name}" for host in plan.hosts)
        self.addresses = tuple(f"10.83.0.{number}" for number in range(1, len(plan.hosts) + 1))

    def build(self) -> None:
        """Make all of it. The caller removes it again, also after an error half way."""
        iproute.call("ip", "netns", "add", self.switches)
        self._add_bridges()
        for index, host in enumerate(self.plan.hosts):
            self._add_host(index)
            if host.bandwidth_bytes_per_s:
                self._slow(self.namespaces[index], INTERFACE, host.bandwidth_bytes_per_s)
                self._slow(self.switches, f"port{index}", host.bandwidth_bytes_per_s)
        self._introduce()

    def remove(self) -> None:
        """Remove what there is."""
        for namespace in (*self.namespaces, self.switches):
            remove_namespace(namespace)

    def traffic(self) -> dict[str, counters.Traffic]:
        """The counters of each host's interface, then of each site's cable as the site sees it."""
        found = {
            host.name: counters.read(namespace, INTERFACE)
            for host, namespace in zip(self.plan.hosts, self.namespaces, strict=True)
        }
        for index, site in enumerate(self.plan.sites):
            found[site.name] = counters.read(self.switches, f"up{index}")
        return found

    def plug(self, host: int, *, pulled: bool) -> None:
        """Pull the cable of a host out of its switch, or put it back in."""
        self._in_switches("link", "set", f"port{host}", "down" if pulled else "up")

    def _add_bridges(self) -> None:
        """One bridge, or with sites one each and one in the middle."""
        self._add_bridge(_MIDDLE)
        for index, site in enumerate(self.plan.sites):
            up, down = f"up{index}", f"down{index}"
            self._add_bridge(f"site{index}")
            self._in_switches("link", "add", up, "type", "veth", "peer", "name", down)
            self._plug(up, f"site{index}")
            self._plug(down, _MIDDLE)
            if site.bandwidth_bytes_per_s:
                self._slow(self.switches, up, site.bandwidth_bytes_per_s)
                self._slow(self.switches, down, site.bandwidth_bytes_per_s)

    def _add_bridge(self, name: str) -> None:
        # No spanning tree: there are no loops, and it would keep a port shut for its first 30 s.
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
        self._plug(port, self._bridge_of(index))
        iproute.call("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", INTERFACE)
        # Pieces small enough to pass a token bucket whole: cutting them up there would cost processor time.
        size = str(SEGMENT_BYTES)
        iproute.call("ip", "-n", namespace, "link", "set", INTERFACE, "gso_max_size", size)
        iproute.call("ip", "-n", namespace, "link", "set", INTERFACE, "address", _hardware_address(index))
        iproute.call("ip", "-n", namespace, "link", "set", INTERFACE, "up")
        self._choose_congestion_control(namespace)

    def _introduce(self) -> None:
        """Tell every host the hardware address of every other, for good.

        What hosts learn by asking goes into a table that all namespaces of a machine share, 1024 entries long as a
        rule: from 33 hosts on (33 × 32 entries) some would find no route to others. What is told does not count.
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
        """The kernel's usual one, where this machine prefers another: BBR, for one, pauses to measure."""
        iproute.try_call("ip", "netns", "exec", namespace, "sh", "-c", f"echo cubic >{_CONGESTION_CONTROL}")

    def _bridge_of(self, index: int) -> str:
        names = [site.name for site in self.plan.sites]
        return f"site{names.index(self.plan.hosts[index].site)}" if names else _MIDDLE

    def _write_hosts_file(self, index: int) -> None:
        """Names that resolve inside the host: all hosts, and this machine's own name, which stands for the host."""
        rows = [f"{address} {host.name}" for host, address in zip(self.plan.hosts, self.addresses, strict=True)]
        directory = HOSTS_FILES / self.namespaces[index]
        directory.mkdir(parents=True)
        own = f"{self.addresses[index]} {socket.gethostname()}"
        (directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *rows, own, ""]))

    def _plug(self, interface: str, bridge: str) -> None:
        self._in_switches("link", "set", interface, "master", bridge)
        self._in_switches("link", "set", interface, "up")

    def _slow(self, namespace: str, interface: str, bytes_per_s: float) -> None:
        """A token bucket: what leaves by this interface leaves at this rate.

        The bucket holds 1 ms of it, at least one segment, so that a burst after silence gains next to nothing; the
        queue before it holds 200 ms, so that many senders to one receiver wait and are not dropped.
        """
        burst_bytes = max(SEGMENT_BYTES + 1000, round(bytes_per_s * 0.001))
        queue_bytes = max(16_000_000, round(bytes_per_s * 0.2))
        where = ("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf")
        rate = f"{round(bytes_per_s * 8)}bit"
        iproute.call(*where, "rate", rate, "burst", str(burst_bytes), "limit", str(queue_bytes))

    def _in_switches(self, *words: str) -> None:
        iproute.call("ip", "-n", self.switches, *words)


def _hardware_address(index: int) -> str:
    """An address of the kind that everybody may give out (its second bit is set)."""
    return f"02:53:00:00:00:{index:02x}"


def remove_namespace(name: str) -> None:
    """Remove one namespace with the cables in it, and its hosts file, if there are any."""
    iproute.try_call("ip", "netns", "delete", name)
    shutil.rmtree(HOSTS_FILES / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(HOSTS_FILES)  # only when empty: others may keep files there
