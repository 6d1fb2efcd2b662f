"""Where runs happen: one base, and a file for each place (`loopback`, `on_lab`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["ENVIRONMENT", "Ended", "Place", "Show"]

Show = Callable[[str], None]
"""Called with every line that a worker prints."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # more workers than cores is normal
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",  # threads that share arenas keep a worker tens of megabytes smaller
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),  # memory of one step is kept for the next: a third more images a second
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "PYTHONUNBUFFERED": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""What keeps a worker light and quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended; `wire_bytes` is what the kernel counted on a host's cable, on average, where there is one."""

    exit_code: int
    wire_bytes: float | None = None


class Place(ABC):
    """Opened as a context; while it is open, it runs one configuration after the other. Leaving it ends what runs."""

    def __enter__(self) -> "Place":
        return self

    @abstractmethod
    def run(self, study: Path, index: int, *, show: Show) -> Ended:
        """Run configuration `index` of the study in that file to its end."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None
