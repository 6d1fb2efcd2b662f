"""Data parallel modules: whether DDP has ever found an unused parameter, where it is told not to reduce, and the ranks
between which FSDP averages gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
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
        self._groups: set[tuple[int, ...]] = set()
        """Those between which FSDP is known to average gradients."""

    def install(self) -> None:
        """Follow the modules that DDP wraps from now on."""
        from torch.distributed import fsdp
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.nn.parallel import DistributedDataParallel

        after(FullyShardedDataParallel, "__init__", self._on_fsdp)
        after(fsdp, "fully_shard", self._on_fully_shard)
        self._leave_constructor_out(DistributedDataParallel)
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

    def _leave_constructor_out(self, wrapper: Any) -> None:
        """Follow no races inside the constructor where it has a stream of its own, as Lightning gives it.

        It broadcasts the parameters there, and what orders that before the first step is the time that the host takes
        to get so far. No script can change that, so none is accused of it.
        """
        import torch

        original, core = wrapper.__init__, self._log.core

        @functools.wraps(original)
        def construct(*args: Any, **options: Any) -> None:
            is_aside = torch.cuda.current_stream() != torch.cuda.default_stream()
            if is_aside:
                core.follow_races(False)
            try:
                original(*args, **options)
            finally:
                if is_aside and self._log.only is None:  # (otherwise the captured steps are over)
                    core.follow_races(True)

        wrapper.__init__ = construct

    def _on_fsdp(self, result: None, module: Any, *args: Any, **options: Any) -> None:
        from torch.distributed import get_process_group_ranks

        if getattr(module, "_inter_node_pg", None) is None:  # (with one, it also averages between groups)
            self._note_group(get_process_group_ranks(module.process_group))

    def _on_fully_shard(self, result: Any, module: Any, *, mesh: Any = None, **options: Any) -> None:
        from torch.distributed import get_world_size

        self._note_group(range(get_world_size()) if mesh is None else mesh.mesh.flatten().tolist())

    def _note_group(self, ranks: Iterable[int]) -> None:
        group = tuple(ranks)
        if group not in self._groups:
            self._groups.add(group)
            self._log.note(EventKind.SHARDED, group=list(group))

    def _on_no_sync(self, wrapper: Any) -> None:
        self._log.note(EventKind.NO_SYNC, subject=self._log.number_of("module", wrapper.module))

    def _on_wrapper(self, result: None, wrapper: Any, *args: Any, **options: Any) -> None:
        if wrapper.find_unused_parameters:
            self._wrappers.append(ref(wrapper))
