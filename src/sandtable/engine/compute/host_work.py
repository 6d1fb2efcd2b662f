"""Work of the host itself: optimizers whose states are in host memory, and files on its disks.

The host does nothing else meanwhile, and the card waits for what it would issue next:

    host = bytes / (memory bandwidth · share / ranks of the node)        disk = bytes / (its rate / ranks of the node)

A process that the script has started for such an optimizer takes the same time, while the host and the card go on.

The ranks of a node do it at the same time, as they step together. The share is that of DeepSpeed's CPU-Adam:
ZeRO-Offload (Ren et al. 2021, table 4, not re-checked) updates 1 to 10 billion parameters in 0.22 to 2.57 s on two Xeon
8168 with 256 GB/s; 28 bytes per parameter make 109 to 127 GB/s.
"""

from dataclasses import dataclass
from typing import ClassVar

from sandtable.cluster.device import Device
from sandtable.engine.compute.family import SUSTAINED, Basis, Conditions, Family
from sandtable.trace.signature import Signature
from sandtable.trace.work import Work

__all__ = ["USUAL_HOST", "HostRates", "HostWork"]

_MEMORY_SHARE = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """What one rank gets of its node: nominal bandwidth of host memory, and rates of the disks."""

    memory_bytes_per_s: float
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float


USUAL_HOST = HostRates(memory_bytes_per_s=25e9, disk_read_bytes_per_s=0.8e9, disk_write_bytes_per_s=0.4e9)
"""An eighth of a server with two sockets and one NVMe drive."""


class HostWork(Family):
    """Kernels that say they run on the host, or that they move files."""

    name = "host"
    operators: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, device: Device, rates: HostRates = USUAL_HOST, conditions: Conditions = SUSTAINED) -> None:
        super().__init__(device, conditions)
        self.rates = rates

    def work_ns(self, signature: Signature) -> float:
        assert signature.work is not None
        return self._duration_ns(signature.work) if signature.work.place == "process" else 0.0

    def host_ns(self, signature: Signature) -> float:
        """Return how long the host is busy."""
        assert signature.work is not None
        return 0.0 if signature.work.place == "process" else self._duration_ns(signature.work)

    def _duration_ns(self, work: Work) -> float:
        bytes_read, bytes_written = work.bytes_read or 0, work.bytes_written or 0
        if work.place == "disk":
            read_ns = bytes_read * 1e9 / self.rates.disk_read_bytes_per_s
            return read_ns + bytes_written * 1e9 / self.rates.disk_write_bytes_per_s
        return (bytes_read + bytes_written) * 1e9 / (self.rates.memory_bytes_per_s * _MEMORY_SHARE)

    def traffic_bytes(self, signature: Signature) -> int:
        return 0

    def basis(self, signature: Signature) -> Basis:
        return "nominal"
