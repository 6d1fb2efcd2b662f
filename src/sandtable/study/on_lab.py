"""Each worker on a host of its own on the lab, with a link as slow as asked for."""

import sys
from pathlib import Path
from types import TracebackType

from sandtable.lab import Lab, Plan
from sandtable.lab.cores import num_cores
from sandtable.study.place import ENVIRONMENT, Ended, Place, Show
from sandtable.study.settings import StudySettings

__all__ = ["OnLab", "cores_for"]

_BYTES_PER_MBIT = 125_000
_LEAST_SHARE = 0.1
"""The least share of a core that a control group can hold; with more hosts than that, there is no limit."""


def cores_for(settings: StudySettings, *, cores: int) -> float:
    """Each host's processors: as asked for, or equal parts of this machine's; 0: no limit."""
    if settings.network.cores_per_host is not None:
        return settings.network.cores_per_host
    part = min(1.0, cores / settings.workers)
    return part if part >= _LEAST_SHARE else 0.0


class OnLab(Place):
    """One lab for the whole study; the kernel's counters are read around each run."""

    def __init__(self, settings: StudySettings) -> None:
        plan = Plan.uniform(
            settings.workers,
            bandwidth_bytes_per_s=settings.network.rate_mbit * _BYTES_PER_MBIT,
            cores=cores_for(settings, cores=num_cores()),
        )
        self._lab = Lab(plan)

    def __enter__(self) -> "OnLab":
        self._lab.__enter__()
        return self

    def run(self, study: Path, index: int, *, show: Show) -> Ended:
        # Not by torchrun: with one worker a host it would be a second process beside each, of the same size.
        command = [sys.executable, "-m", "sandtable.study.worker", str(study.resolve()), str(index)]
        result = self._lab.run(command, show=lambda _, line: show(line), environment=ENVIRONMENT)
        sent = sum(host.traffic.sent_bytes for host in result.hosts)
        return Ended(exit_code=result.exit_code, wire_bytes=sent / len(result.hosts))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lab.__exit__(kind, error, traceback)
