"""Data parallel modules: whether DDP has ever found an unused parameter, and where it is told not to reduce."""

from __future__ import annotations

from typing import Any
from weakref import ref

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, after, before

__all__ = ["DataParallelWatcher"]


class DataParallelWatcher:
    """Reads what DDP's reducer says of itself after each step; it begins to with the second."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._wrappers: list[ref[Any]] = []
        self._noted: dict[int, int] = {}

    def install(self) -> None:
        """Follow the modules that DDP wraps from now on."""
        from torch.nn.parallel import DistributedDataParallel

        after(DistributedDataParallel, "__init__", self._on_wrapper)
        before(DistributedDataParallel, "no_sync", self._on_no_sync)

    def end_step(self) -> None:
        """Note the bytes of parameters that went unused, where there are more than before."""
        for wrapper in filter(None, (made() for made in self._wrappers)):
            num_unused = wrapper._get_ddp_logging_data().get("unused_parameter_size")
            subject = self._log.number_of("module", wrapper.module)
            if num_unused is not None and num_unused > self._noted.get(subject, -1):
                self._noted[subject] = num_unused
                self._log.note(EventKind.UNUSED_PARAMETERS, subject=subject, num_unused=num_unused)

    def _on_no_sync(self, wrapper: Any) -> None:
        self._log.note(EventKind.NO_SYNC, subject=self._log.number_of("module", wrapper.module))

    def _on_wrapper(self, result: None, wrapper: Any, *args: Any, **options: Any) -> None:
        if wrapper.find_unused_parameters:
            self._wrappers.append(ref(wrapper))
