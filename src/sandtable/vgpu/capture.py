"""Capture: one rank's script on the virtual GPU, from the first line to the records."""

from __future__ import annotations

import resource
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from sandtable.trace import Line, MemoryPeaks, Note, RankRecords
from sandtable.units import MIB
from sandtable.vgpu import preload
from sandtable.vgpu.adaptations import adapt
from sandtable.vgpu.cuda_api import device as cuda_device
from sandtable.vgpu.failures import library_prefixes
from sandtable.vgpu.futures import follow_futures
from sandtable.vgpu.key_value_store import offer_store
from sandtable.vgpu.ordering import in_order
from sandtable.vgpu.process_groups import GroupAnnouncer
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.settings import RankSettings
from sandtable.vgpu.socket_messages import MessageRecorder
from sandtable.vgpu.steps import StepCounter
from sandtable.vgpu.stop import StopCapture

__all__ = ["CONTEXT_BYTES", "Capture"]

CONTEXT_BYTES = 512 * MIB
"""Memory that a CUDA context and the libraries' kernels take before the first tensor."""

_REDUCES = ("", "sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")
_RECORD_TYPES = {
    "kind": "u1",
    "ref": "u4",
    "stream": "u2",
    "phase": "u1",
    "line": "u4",
    "value": "i8",
    "mark": "i8",
    "job": "u4",
}
_CALL_TYPES = {
    "op": "u2",
    "group": "u2",
    "seq": "u4",
    "dtype": "u2",
    "bytes_in": "i8",
    "bytes_out": "i8",
    "peer": "i4",
    "stream": "u2",
    "line": "u4",
    "is_async": "u1",
    "batch": "u4",
    "reduce": "u1",
    "splits": "u4",
}


class Capture:
    """A running capture in this process."""

    def __init__(self, settings: RankSettings, core: ModuleType, groups: GroupAnnouncer, steps: StepCounter) -> None:
        self._settings = settings
        self._core = core
        self._groups = groups
        self._steps = steps
        self._base_seconds = _core_seconds()

    @classmethod
    def start(cls, settings: RankSettings, channel: RankChannel) -> Capture:
        """Make this process a rank: set up the node's cards, the groups' channel, and the hooks that count steps."""
        core = preload.loaded_core()
        device = settings.device
        core.configure(settings.gpus_per_node, device.memory_bytes, CONTEXT_BYTES, device.major)
        core.set_library_prefixes(library_prefixes())
        cuda_device.describe(device, count=settings.gpus_per_node)
        _forget_fork_server()
        core.set_wire(channel)
        channel.take_logged_calls = core.take_notes
        groups = GroupAnnouncer(core, channel, rank=settings.rank, world_size=settings.world_size)
        groups.install()
        steps = StepCounter(core, wanted=settings.num_steps)
        steps.install()
        adapt(core)
        follow_futures(core)

        def ask(*request: Any) -> Any:
            steps.go_on()
            return channel.ask_store(*request)

        offer_store(ask)
        MessageRecorder(core, channel, groups, steps).install()
        core.set_operator_limit(settings.max_operators, _stopper("max-operators"))
        core.set_recording(True)
        return cls(settings, core, groups, steps)

    def finish(self, stop_reason: str) -> RankRecords:
        """Stop recording and return the records."""
        core = self._core
        core.set_recording(False)
        calls = core.calls()
        records, call_columns = in_order(_columns(core.records(), _RECORD_TYPES), _columns(calls, _CALL_TYPES))
        allocated, reserved, num_ooms = core.memory_peaks(self._settings.local_rank % core.device_count())
        return RankRecords.build(
            rank=self._settings.rank,
            records=records,
            calls=call_columns,
            signatures=core.signatures(),
            call_ops=tuple(calls["ops"]),
            dtypes=tuple(calls["dtypes"]),
            reduces=_REDUCES,
            splits=tuple((tuple(given), tuple(got)) for given, got in calls["split_lists"]),
            lines=tuple(Line(*line) for line in core.lines()),
            groups=tuple(self._groups.own),
            seen_groups=tuple(self._groups.seen),
            notes=tuple(Note(*note) for note in core.notes()),
            memory=MemoryPeaks(
                allocated_bytes=allocated,
                reserved_bytes=reserved,
                capacity_bytes=self._settings.device.memory_bytes,
                num_ooms=num_ooms,
            ),
            num_steps=self._steps.num_steps,
            finished=stop_reason != "max-operators",
            stop_reason=stop_reason,
            core_seconds=_core_seconds() - self._base_seconds,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )


def _columns(raw: dict[str, Any], types: dict[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.frombuffer(raw[name], dtype=dtype) for name, dtype in types.items()}


def _stopper(reason: str) -> Callable[[], NoReturn]:
    def stop() -> NoReturn:
        raise StopCapture(reason)

    return stop


def _forget_fork_server() -> None:
    """Reset what the fork server knew about CUDA."""
    import torch

    torch.cuda._initialized = False
    torch.cuda._cached_device_count = None
    cuda_device.forget_init()


def _core_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
