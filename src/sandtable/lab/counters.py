"""What went over a cable: the interface's own counters, read before and after."""

from dataclasses import dataclass

from sandtable.lab import iproute

__all__ = ["Traffic", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes (with Ethernet headers) and packets, as the interface saw them.

    A packet may be larger than the wire's 1500 bytes: the kernel hands large segments over in one piece, as network
    cards do that cut them up themselves.
    """

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int

    def __sub__(self, before: "Traffic") -> "Traffic":
        return Traffic(
            sent_bytes=self.sent_bytes - before.sent_bytes,
            received_bytes=self.received_bytes - before.received_bytes,
            sent_packets=self.sent_packets - before.sent_packets,
            received_packets=self.received_packets - before.received_packets,
        )


def read(namespace: str, interface: str) -> Traffic:
    """The counters now."""
    stats = iproute.link_of(namespace, interface)["stats64"]
    return Traffic(
        sent_bytes=stats["tx"]["bytes"],
        received_bytes=stats["rx"]["bytes"],
        sent_packets=stats["tx"]["packets"],
        received_packets=stats["rx"]["packets"],
    )
