"""Resources: memory by line and by card, emptied caches, files of weights, and the time that batches take."""

from __future__ import annotations

import functools
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sandtable.trace import CacheFlush, CheckpointRead, DeviceUse, HostRead, HostTensor, InputWait, Line, MemoryMark
from sandtable.vgpu.observing.events import EventLog, before
from sandtable.vgpu.observing.host_tensors import host_tensors
from sandtable.vgpu.observing.retention import RetentionWatcher

__all__ = ["ResourceWatcher", "device_uses", "host_reads"]

_MOST_MARKED_STEPS = 8
_MOST_LINES = 200
_MOST_FLUSHES = 1000
_MOST_WAITS = 2000


class ResourceWatcher:
    """Notes what this process takes of the node, from `install` on."""

    def __init__(self, log: EventLog, *, num_steps: int) -> None:
        self.flushes: list[CacheFlush] = []
        self.reads: list[CheckpointRead] = []
        self.waits: list[InputWait] = []
        self.marks: list[MemoryMark] = []
        self.checkpointed: Counter[Line] = Counter()
        self.host_tensors: tuple[HostTensor, ...] = ()
        self.retention = RetentionWatcher(num_steps=num_steps)
        self._log = log
        self._step = 0
        self._is_over = False

    def install(self) -> None:
        """Watch the functions of torch that are concerned."""
        import torch
        import torch.utils.checkpoint
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        _around(torch.cuda, "empty_cache", self._on_flush)
        torch.cuda.memory.empty_cache = torch.cuda.empty_cache
        _around(torch, "load", self._on_load)
        torch.serialization.load = torch.load
        _around(_BaseDataLoaderIter, "__next__", self._on_batch)
        # Both are called once for each part that is checkpointed, the one for reentrant checkpoints.
        before(torch.utils.checkpoint, "check_backward_validity", self._on_checkpointed)
        before(torch.utils.checkpoint._checkpoint_hook, "__init__", self._on_checkpointed)

    def end_step(self) -> None:
        """Note what is held at the end of a step."""
        self._step += 1
        if self._step == 1:
            self.host_tensors = host_tensors()
        if self._step > _MOST_MARKED_STEPS or self._log.core.is_compiling():
            return
        self.retention.look(self._step)
        for place, num_bytes, num_tensors in self._log.core.memory_living(self._log.core.current_device()):
            if len(self.marks) < _MOST_MARKED_STEPS * _MOST_LINES:
                self.marks.append(
                    MemoryMark(step=self._step, num_bytes=num_bytes, num_tensors=num_tensors, place=Line(*place))
                )

    def stop(self) -> None:
        """Note nothing more: the captured steps are over, and the script is only followed."""
        self._is_over = True

    def _on_flush(self, flush: Callable[[], None]) -> None:
        import torch

        core, reserved_bytes = self._log.core, torch.cuda.memory_reserved()
        flush()
        if self._is_over:
            return
        if torch.cuda.memory_reserved() < reserved_bytes:
            # cudaFree waits for all that the card has to do, which orders streams; it is no wait of the script's.
            core.set_recording(False)
            core.synchronize()
            core.set_recording(True)
        if len(self.flushes) < _MOST_FLUSHES:
            self.flushes.append(CacheFlush(row=core.num_rows(), step=self._step, place=self._log.place()))

    def _on_checkpointed(self, *args: Any, **options: Any) -> None:
        if not self._is_over and not self._log.core.is_compiling():
            self.checkpointed[self._log.place()] += 1

    def _on_load(self, load: Callable[[], Any], path: Any = None, *args: Any, **options: Any) -> Any:
        core = self._log.core
        earlier = _bytes_on_cards(core)
        loaded = load()
        taken = {card: size - earlier.get(card, 0) for card, size in _bytes_on_cards(core).items()}
        is_file = isinstance(path, str | os.PathLike) and os.path.exists(path)
        self.reads.append(
            CheckpointRead(
                path=str(path) if is_file else "",
                file_bytes=os.path.getsize(path) if is_file else 0,
                bytes_on_device=tuple((_card_of_node(card), size) for card, size in sorted(taken.items()) if size > 0),
                is_mapped=bool(options.get("mmap")),
                place=self._log.place(),
            )
        )
        return loaded

    def _on_batch(self, take: Callable[[], Any], batches: Any) -> Any:
        start, queued = time.perf_counter_ns(), _queued_ns()
        batch = take()
        if not self._is_over and len(self.waits) < _MOST_WAITS:
            taken = time.perf_counter_ns() - start - (_queued_ns() - queued)
            self.waits.append(
                InputWait(
                    loader=self._log.number_of("loader iterator", batches),
                    batch=int(batches._num_yielded),
                    step=self._step,
                    nanoseconds=max(taken, 0),
                    num_workers=int(batches._num_workers),
                    place=self._log.place(),
                )
            )
        return batch


def device_uses(core: ModuleType) -> tuple[DeviceUse, ...]:
    """Return the lines that took most of each card, and where each first took part in a collective."""
    uses = [
        DeviceUse(device=_card_of_node(device), is_call=True, num_bytes=0, place=Line(*place))
        for device, place in core.call_devices()
    ]
    for device in range(core.num_cards()):
        lines = sorted(core.memory_uses(device), key=lambda use: (-use[1], use[0]))
        uses += [
            DeviceUse(device=_card_of_node(device), is_call=False, num_bytes=num_bytes, place=Line(*place))
            for place, num_bytes, _ in lines[:8]
        ]
    return tuple(uses)


def host_reads(core: ModuleType) -> tuple[HostRead, ...]:
    """Return where the host waited for the card."""
    return tuple(
        HostRead(kind=kind, count=count, library=library, place=Line(*place))
        for kind, place, library, count in core.host_reads()
    )


def _card_of_node(device: int) -> int:
    """Return the number that a card has on its node, of one that this process may see under another number."""
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if device >= len(names):
        return device
    return int(names[device]) if names[device].isdigit() else zlib.crc32(names[device].encode())


def _bytes_on_cards(core: ModuleType) -> dict[int, int]:
    return {card: sum(use[1] for use in core.memory_living(card)) for card in range(core.num_cards())}


def _queued_ns() -> int:
    """Return how long this thread has waited for a core that others had, as far as the kernel tells."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _around(owner: Any, name: str, notice: Callable[..., Any]) -> None:
    """Have `notice` make each call of this function: it is given what makes it, and the arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        return notice(functools.partial(original, *args, **options), *args, **options)

    setattr(owner, name, call)
