"""The meter: how much memory the capture takes at its peak, over all processes alive at a time.

Ranks share most of their memory with the zygote they were forked from, so the total is the zygote's and the launcher's
resident memory plus what each rank has to itself. Asking the kernel takes milliseconds a process, so it is asked about
once a second, less often when there are many processes, and each rank tells its own figure when it ends.
"""

import time
from collections.abc import Collection

from sandtable.vgpu.child import Child
from sandtable.vgpu.processes import private_bytes, resident_bytes

__all__ = ["Meter"]

_INTERVAL_SECONDS = 1.0
_MAX_SHARE = 1 / 100
"""Of the launcher's time."""


class Meter:
    """Watches the memory of the zygote and its ranks."""

    def __init__(self, zygote: int) -> None:
        self.peak_bytes = 0
        self._zygote = zygote
        self._shared_bytes = 0
        self._next = 0.0

    def look(self, children: Collection[Child]) -> None:
        """Asks the kernel, if it is time to."""
        start = time.monotonic()
        if start < self._next:
            return
        self._shared_bytes = resident_bytes(self._zygote) + resident_bytes("self")
        for child in children:
            if child.process is not None:
                child.private_bytes = private_bytes(child.process)
        self.add_up(children)
        now = time.monotonic()
        self._next = now + max(_INTERVAL_SECONDS, (now - start) / _MAX_SHARE)

    def add_up(self, children: Collection[Child]) -> None:
        """Notes the total of what is known."""
        total = self._shared_bytes + sum(child.private_bytes for child in children)
        self.peak_bytes = max(self.peak_bytes, total)
