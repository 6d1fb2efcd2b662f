"""Following: how a rank goes on after the captured steps, to see whether ranks still meet at the end of the epoch.

Nothing is recorded any more and nothing is printed. Collectives still go to the launcher, which compares them. The
script must do no harm while nobody watches: what it saves with `torch.save` is kept in memory, and before it would
write to a file that was there already, it is stopped. It is stopped, too, when its time is up, wherever it then is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sandtable.vgpu.stop import StopCapture

__all__ = ["FOLLOWED_TOO_SLOW_SECONDS", "Follower"]

FOLLOWED_TOO_SLOW_SECONDS = 0.5
"""Steps that compute for longer than this are not followed, unless a number of epochs is given."""

_LARGE_WORLD = 64
_TOO_SLOW_IN_LARGE_WORLDS_SECONDS = 0.1
"""The same where most ranks are not run: what only they do cannot be seen, and dozens that are run one after another
take long."""

_GRACE_SECONDS = 1.0
"""How long after its time a rank that makes no steps is stopped by a signal."""

_EPOCH_SECONDS = 120.0
"""How long to follow a script whose number of epochs is given."""

_WRITING = os.O_WRONLY | os.O_RDWR
_HARMLESS = ("/dev/", "/proc/", "/sys/", "/tmp/torchinductor", "/tmp/pymp-")


class Follower:
    """Follows the script of this process for `seconds`, or for `num_epochs` of each of its data loaders."""

    def __init__(self, *, seconds: float, num_epochs: int, world_size: int) -> None:
        self.num_epochs = num_epochs
        self._limit_seconds = (
            FOLLOWED_TOO_SLOW_SECONDS if world_size <= _LARGE_WORLD else _TOO_SLOW_IN_LARGE_WORLDS_SECONDS
        )
        self._seconds = _EPOCH_SECONDS if num_epochs else seconds
        self._saved: dict[str, Any] = {}
        self._own_files: set[str] = set()
        self._has_ended = False

    def is_worthwhile(self, step_seconds: float) -> bool:
        """Return whether steps of this duration can be followed for some way."""
        return self._seconds > 0 and (self.num_epochs > 0 or step_seconds < self._limit_seconds)

    def begin(self) -> float:
        """Guard files from now on; return the moment until which to follow."""
        import torch

        torch.save = self._save  # type: ignore[assignment]
        torch.load = self._loading(torch.load)
        sys.addaudithook(self._guard)
        process = os.getpid()
        timer = threading.Timer(self._seconds + _GRACE_SECONDS, lambda: os.kill(process, signal.SIGTERM))
        timer.daemon = True
        timer.start()
        return time.monotonic() + self._seconds

    def end(self) -> None:
        """Guard files no longer: what is written now is not the script's."""
        self._has_ended = True

    def _save(self, thing: Any, file: Any, *args: Any, **options: Any) -> None:
        if isinstance(file, str | os.PathLike):
            self._saved[os.path.abspath(file)] = thing

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(file: Any, *args: Any, **options: Any) -> Any:
            if isinstance(file, str | os.PathLike) and (path := os.path.abspath(file)) in self._saved:
                return self._saved[path]
            return original(file, *args, **options)

        return load

    def _guard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._has_ended or event != "open" or threading.current_thread() is not threading.main_thread():
            return
        path, _, flags = arguments
        if not isinstance(path, str | bytes) or not isinstance(flags, int) or not flags & _WRITING:
            return
        name = os.path.abspath(os.fsdecode(path))
        if name.startswith(_HARMLESS) or name in self._own_files:
            return
        if os.path.exists(name):
            raise StopCapture("steps")
        self._own_files.add(name)
