"""The memory meter: how much memory a capture takes at its peak, over all processes alive at a time.

Ranks share most of their memory with the fork server, so the total is the resident memory of the fork server and the
launcher plus the private memory of each rank. Asking the kernel takes milliseconds per process, so the meter does it
about once a second, less often when there are many processes, and each rank reports its own figure when it ends.
"""

import time
from collections.abc import Collection

from sandtable.vgpu.processes import private_bytes, resident_bytes
from sandtable.vgpu.rank_process import RankProcess

__all__ = ["MemoryMeter"]

_INTERVAL_SECONDS = 1.0
_MAX_SHARE = 1 / 100
"""Of the launcher's time."""


class MemoryMeter:
    """Watches the memory of the fork server and its ranks."""

    def __init__(self, fork_server: int) -> None:
        self.peak_bytes = 0
        self.template: int | None = None
        """The process from which some ranks are forked, and which is itself forked from the fork server."""
        self._fork_server = fork_server
        self._shared_bytes = 0
        self._next_look = 0.0

    def look(self, processes: Collection[RankProcess]) -> None:
        """Ask the kernel, if enough time has passed."""
        start = time.monotonic()
        if start < self._next_look:
            return
        self._shared_bytes = resident_bytes(self._fork_server) + resident_bytes("self")
        if self.template is not None:
            self._shared_bytes += private_bytes(self.template)
        for process in processes:
            if process.process_id is not None:
                process.private_bytes = private_bytes(process.process_id)
        self.add_up(processes)
        now = time.monotonic()
        self._next_look = now + max(_INTERVAL_SECONDS, (now - start) / _MAX_SHARE)

    def add_up(self, processes: Collection[RankProcess]) -> None:
        """Compare the total of the known figures with the peak."""
        total = self._shared_bytes + sum(process.private_bytes for process in processes)
        self.peak_bytes = max(self.peak_bytes, total)
