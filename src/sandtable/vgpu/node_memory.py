"""Memory that the ranks of a node share by name (`multiprocessing.shared_memory`).

Data loaders use it as a notice board: one rank of the node writes what all of them need, and each waits until the
others have read it (mosaicml-streaming). A rank that uses a name therefore tells the launcher, which runs all ranks of
its node. Nodes are one machine here, so each has names of its own, which end with the run.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from sandtable.vgpu.protocol import NodeMemoryNamed
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.settings import RankTask

__all__ = ["follow_node_memory", "remove_node_memory"]

_DIRECTORY = Path("/dev/shm")
_SECONDS_WITHOUT_SIZE = 10.0


def follow_node_memory(task: Callable[[], RankTask], channel: RankChannel) -> None:
    """Report the first name that this rank uses, and give names of `task`'s node to memory."""
    original = shared_memory.SharedMemory.__init__
    is_reported = False

    @functools.wraps(original)
    def initialise(self: Any, name: str | None = None, *rest: Any, **options: Any) -> None:
        nonlocal is_reported
        if name is not None:
            if not (is_reported or channel.is_forked):
                is_reported = True
                channel.report(NodeMemoryNamed())
            prefix = f"{_prefix(task().records_path)}{task().settings.group_rank}-"
            name = name if name.startswith(prefix) else prefix + name.removeprefix("/")
        _until_it_has_a_size(self, lambda: original(self, name, *rest, **options))

    shared_memory.SharedMemory.__init__ = initialise  # type: ignore[method-assign]


def _until_it_has_a_size(memory: shared_memory.SharedMemory, initialise: Callable[[], None]) -> None:
    """Initialise `memory`, which another rank may have created and not yet given its size.

    The moment between the two is short on a real node; it is long where more ranks run than there are cores.
    """
    give_up = time.monotonic() + _SECONDS_WITHOUT_SIZE
    while True:
        try:
            return initialise()
        except ValueError as error:
            if "empty file" not in str(error) or time.monotonic() > give_up:
                raise
            memory.close()
            time.sleep(0.001)


def remove_node_memory(records_path: str) -> None:
    """Remove the memory that ranks with records beside this path have left."""
    for path in _DIRECTORY.glob(f"{_prefix(records_path)}*"):
        with suppress(OSError):
            path.unlink()


def _prefix(records_path: str) -> str:
    return f"sandtable-{hashlib.sha256(os.path.dirname(records_path).encode()).hexdigest()[:12]}-"
