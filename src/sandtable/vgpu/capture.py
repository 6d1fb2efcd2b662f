"""Capture: one rank's script on the virtual GPU, from the first line to the records."""

from __future__ import annotations

import resource
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from sandtable.trace import MISSING_PACKAGE, NO_STEPS, SKIPPED_UPDATES, Kind, Line, MemoryPeaks, Note, RankRecords
from sandtable.units import MIB
from sandtable.vgpu import preload
from sandtable.vgpu.adaptations import adapt
from sandtable.vgpu.checkpoints import adapt_checkpoints
from sandtable.vgpu.child_processes import ChildProcesses
from sandtable.vgpu.compile import follow_compiler
from sandtable.vgpu.cuda_api import device as cuda_device
from sandtable.vgpu.cuda_api.graphs import follow_updates
from sandtable.vgpu.extensions import follow_extensions
from sandtable.vgpu.failures import library_prefixes, script_prefixes
from sandtable.vgpu.flat_buffers import FlatBufferReader
from sandtable.vgpu.futures import follow_futures
from sandtable.vgpu.host_memory import HostMemoryReader
from sandtable.vgpu.key_value_store import offer_store
from sandtable.vgpu.list_shardings import adapt_list_shardings
from sandtable.vgpu.node_queries import offer_nvidia_smi
from sandtable.vgpu.ordering import in_order
from sandtable.vgpu.packages import (
    DescribedOperators,
    Package,
    Watcher,
    follow_descriptions,
    follow_packages,
    mpi4py,
)
from sandtable.vgpu.process_groups import GroupAnnouncer
from sandtable.vgpu.protocol import StepEnded
from sandtable.vgpu.rank_channel import RankChannel
from sandtable.vgpu.routed_layers import follow_layers
from sandtable.vgpu.settings import RankSettings
from sandtable.vgpu.shared_files import FileWatcher
from sandtable.vgpu.skipped_updates import SkippedUpdates
from sandtable.vgpu.socket_messages import MessageRecorder
from sandtable.vgpu.step_rows import keep_steps
from sandtable.vgpu.steps import StepCounter
from sandtable.vgpu.stop import StopCapture
from sandtable.vgpu.subprocesses import PROGRAM_EVENTS
from sandtable.vgpu.torch_processes import follow_processes
from sandtable.vgpu.undescribed import ask_for_description

__all__ = ["CONTEXT_BYTES", "Capture"]

CONTEXT_BYTES = 512 * MIB
"""Memory that a CUDA context and the libraries' kernels take before the first tensor."""

_REPORT_SECONDS = 0.1
"""The least time between reports that a step has ended: a step may take less than a report costs."""

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

    def __init__(
        self,
        settings: RankSettings,
        core: ModuleType,
        channel: RankChannel,
        groups: GroupAnnouncer,
        steps: StepCounter,
        skipped: SkippedUpdates,
        flat_buffers: FlatBufferReader,
        host_memory: HostMemoryReader,
    ) -> None:
        self._settings = settings
        self._core = core
        self._channel = channel
        self._groups = groups
        self._steps = steps
        self._skipped = skipped
        self._flat_buffers = flat_buffers
        self._host_memory = host_memory
        self._files = FileWatcher(core, channel)
        self._files.install()
        self._base_seconds = _core_seconds()

    @classmethod
    def start(cls, settings: RankSettings, channel: RankChannel) -> Capture:
        """Make this process a rank: set up the node's cards, the groups' channel, and the hooks that count steps."""
        core = preload.loaded_core()
        _set_up_cards(core, settings)
        core.set_library_prefixes(library_prefixes(), script_prefixes(sys.argv[0]))
        _forget_cuda()
        core.set_wire(channel)
        channel.take_logged_calls = core.take_notes
        groups = GroupAnnouncer(core, channel, rank=settings.rank, world_size=settings.world_size)
        groups.install()
        flat_buffers, host_memory = FlatBufferReader(groups.own), HostMemoryReader()

        next_report = 0.0

        def end_step(number: int) -> None:
            nonlocal next_report
            flat_buffers.read()
            host_memory.read()
            now = time.monotonic()
            if now >= next_report:
                channel.report(StepEnded(number))
                next_report = now + _REPORT_SECONDS

        from sandtable.vgpu.host_updates import follow_host_updates  # it imports torch

        wanted, marker = settings.num_steps, settings.step_marker
        is_forked = partial(getattr, channel, "is_forked")
        steps = StepCounter(core, wanted=wanted, marker=marker, on_step=end_step, is_forked=is_forked)
        steps.install()
        follow_updates(steps.count_replay)
        skipped = SkippedUpdates(steps)
        skipped.install()
        adapt(core)
        adapt_checkpoints(core)
        adapt_list_shardings()
        follow_host_updates()
        operators = DescribedOperators(ask_for_description)
        follow_extensions(core, operators.implement)
        finder = follow_packages(
            _watcher(core, steps, flat_buffers, operators),
            Package(name="torch", adaptations=follow_compiler(core, stop_if_done=steps.stop_if_done)),
            mpi4py.package(place=lambda: (groups.rank, groups.world_size), new_group=groups.new_line),
            without=settings.without,
        )
        follow_descriptions(core, finder, operators)
        if settings.costs:
            runpy.run_path(settings.costs)
        follow_futures(core)
        routing = settings.routing
        core.set_routing(routing.name, routing.zipf, routing.weights)
        if routing.differs_by_layer:
            follow_layers(core)

        MessageRecorder(core, channel, groups, steps).install()
        core.set_operator_limit(settings.max_operators, _stopper("max-operators"))
        core.set_recording(True)
        return cls(settings, core, channel, groups, steps, skipped, flat_buffers, host_memory)

    def before_freeze(self) -> None:
        """Note the parameters that exist before the garbage collector forgets all objects."""
        self._flat_buffers.note_parameters()

    def attend(self, processes: ChildProcesses) -> None:
        """Follow what the script's processes do with torch, and offer ranks the job's store."""

        def ask(*request: Any) -> Any:
            self._steps.go_on()
            return self._channel.ask_store(*request)

        self._core.watch_audit_events(PROGRAM_EVENTS, processes.programs.check)
        follow_processes(processes, self._groups)
        offer_store(ask, is_rank=lambda: processes.is_rank)

    def copy_process(self) -> int:
        """Fork a copy of this process in which CUDA stays what it was; return its process, or 0 in the copy."""
        return cuda_device.fork_unnoticed()

    def forget_cuda(self) -> None:
        """Forget that the process this one was forked from has initialised CUDA, if it has."""
        _forget_cuda()

    def become(self, settings: RankSettings) -> None:
        """Record for this rank from now on, in a process that has made no process group yet."""
        import torch

        cuda_device.stay_initialised()  # in the template an import may have asked what card there is
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            _set_up_cards(self._core, settings)
        self._settings = settings
        self._groups.become(rank=settings.rank, world_size=settings.world_size)
        self._base_seconds = _core_seconds()

    def finish(self, stop_reason: str) -> RankRecords:
        """Stop recording and return the records."""
        core = self._core
        core.set_recording(False)
        self._files.stop()
        calls = core.calls()
        records, call_columns = in_order(_columns(core.records(), _RECORD_TYPES), _columns(calls, _CALL_TYPES))
        records = keep_steps(records, self._steps.decide())
        num_steps = int((records["kind"] == Kind.STEP).sum())
        self._note_missing(num_steps)
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
            flat_buffers=self._flat_buffers.buffers,
            reduced_buckets=self._flat_buffers.buckets,
            chunked_dims=self._flat_buffers.chunked_dims,
            notes=tuple(Note(*note) for note in core.notes()),
            memory=MemoryPeaks(
                allocated_bytes=allocated,
                reserved_bytes=reserved,
                capacity_bytes=self._settings.device.memory_bytes,
                num_ooms=num_ooms,
                host_bytes=self._host_memory.num_bytes or 0,
            ),
            num_steps=num_steps,
            finished=stop_reason != "max-operators",
            stop_reason=stop_reason,
            core_seconds=_core_seconds() - self._base_seconds,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def _note_missing(self, num_steps: int) -> None:
        """Note what happened in place of the steps that are missing."""
        if num_steps >= self._settings.num_steps:
            return
        skipped = self._skipped.describe()
        if skipped:
            self._core.note(SKIPPED_UPDATES, skipped)
        if num_steps == 0:
            self._core.note(NO_STEPS, self._steps.describe_none())


def _watcher(
    core: ModuleType, steps: StepCounter, flat_buffers: FlatBufferReader, operators: DescribedOperators
) -> Watcher:
    return Watcher(
        on_reduction=flat_buffers.note_reduction,
        around_optimizer=steps.around_optimizer,
        after_backward=partial(_after_backward, core),
        on_update=steps.note_update,
        on_missing=partial(_note_missing_package, core),
        on_unbuilt=operators.define,
    )


@contextmanager
def _after_backward(core: ModuleType) -> Iterator[None]:
    """Count all work inside as the backward pass's."""
    core.set_backward(True)
    try:
        yield
    finally:
        core.set_backward(False)


def _note_missing_package(core: ModuleType, name: str) -> None:
    text = f"{name} is not installed here: a replacement is used as if it were; --without {name} rehearses without it"
    core.note(MISSING_PACKAGE, text)


def _set_up_cards(core: ModuleType, settings: RankSettings) -> None:
    device = settings.device

    def configure(count: int) -> None:
        core.configure(count, device.memory_bytes, CONTEXT_BYTES, device.major)

    configure(settings.num_gpus)
    cuda_device.describe(device, count=settings.num_gpus, configure=configure)
    offer_nvidia_smi(settings)


def _columns(raw: dict[str, Any], types: dict[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.frombuffer(raw[name], dtype=dtype) for name, dtype in types.items()}


def _stopper(reason: str) -> Callable[[], NoReturn]:
    def stop() -> NoReturn:
        raise StopCapture(reason)

    return stop


def _forget_cuda() -> None:
    """Reset what the process that this one was forked from knew about CUDA."""
    import torch

    torch.cuda._initialized = False
    torch.cuda._cached_device_count = None
    cuda_device.forget_init()


def _core_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
