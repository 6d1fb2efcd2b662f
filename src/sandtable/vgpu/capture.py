"""Capture: one rank's script on the virtual GPU, from the first line to the records."""

from __future__ import annotations

import os
import resource
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from sandtable.trace import (
    MISSING_PACKAGE,
    NO_STEPS,
    SKIPPED_UPDATES,
    Kind,
    Line,
    MemoryPeaks,
    Note,
    Observations,
    RankRecords,
)
from sandtable.units import MIB
from sandtable.vgpu import observing, preload
from sandtable.vgpu.adaptations import adapt
from sandtable.vgpu.checkpoints import adapt_checkpoints
from sandtable.vgpu.child_processes import ChildProcesses
from sandtable.vgpu.compile import follow_compiler
from sandtable.vgpu.cuda_api import device as cuda_device
from sandtable.vgpu.cuda_api.graphs import follow_updates
from sandtable.vgpu.extensions import follow_extensions
from sandtable.vgpu.failures import library_prefixes, script_place, script_prefixes
from sandtable.vgpu.flat_buffers import FlatBufferReader
from sandtable.vgpu.following import Follower
from sandtable.vgpu.futures import follow_futures
from sandtable.vgpu.host_clock import HostWatch
from sandtable.vgpu.host_memory import HostMemoryReader
from sandtable.vgpu.key_value_store import offer_store
from sandtable.vgpu.list_shardings import adapt_list_shardings
from sandtable.vgpu.loop_state import BatchCounter
from sandtable.vgpu.node_queries import offer_nvidia_smi
from sandtable.vgpu.observing import Observer, observe
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
from sandtable.vgpu.real_values import ValueRecorder
from sandtable.vgpu.routed_layers import follow_layers
from sandtable.vgpu.routing import Routing
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watchers:
    """What a capture reads at its end, and the channel to the launcher."""

    channel: RankChannel
    groups: GroupAnnouncer
    steps: StepCounter
    skipped: SkippedUpdates
    flat_buffers: FlatBufferReader
    host_memory: HostMemoryReader
    observer: Observer | None


class Capture:
    """A running capture in this process."""

    def __init__(self, settings: RankSettings, core: ModuleType, watchers: _Watchers) -> None:
        channel, steps = watchers.channel, watchers.steps
        self._settings = settings
        self._core = core
        self._channel = channel
        self._groups = watchers.groups
        self._steps = steps
        self._skipped = watchers.skipped
        self._flat_buffers = watchers.flat_buffers
        self._host_memory = watchers.host_memory
        self._observer = watchers.observer
        self._values = _record_values(core, settings, steps)
        self._follower = Follower(
            seconds=settings.follow_seconds, num_epochs=settings.num_epochs, world_size=settings.world_size
        )
        self._loaders = BatchCounter()
        self._loaders.install()
        self._frozen: RankRecords | None = None
        self._frozen_observations: Observations | None = None
        steps.on_enough = self._follow
        self._files = FileWatcher(core, channel)
        self._files.install()
        self._base_seconds = _core_seconds()

    @classmethod
    def start(cls, settings: RankSettings, channel: RankChannel) -> Capture:
        """Make this process a rank: set up the node's cards, the groups' channel, and the hooks that count steps."""
        core = preload.loaded_core()
        _set_up_cards(core, settings)
        core.set_library_prefixes(library_prefixes(), script_prefixes(sys.argv[0]), os.path.dirname(observing.__file__))
        _forget_cuda()
        core.set_wire(channel)
        channel.take_logged_calls = core.take_notes
        _watch_host(channel)
        groups = GroupAnnouncer(core, channel, rank=settings.rank, world_size=settings.world_size)
        groups.install()
        flat_buffers, host_memory = FlatBufferReader(groups.own), HostMemoryReader()

        observer = observe(core, groups.own, num_steps=settings.num_steps) if settings.observes else None
        looks = [flat_buffers.read, host_memory.read]
        if observer is not None:
            looks.append(observer.end_step)
        steps = StepCounter(
            core,
            wanted=settings.num_steps,
            marker=settings.step_marker,
            on_step=_step_listener(channel, looks),
            is_forked=lambda: channel.is_forked,
        )
        if observer is not None:
            steps.on_backward = observer.begin_backward, observer.end_backward
        steps.install()
        follow_updates(steps.count_replay)
        skipped = SkippedUpdates(steps)
        skipped.install()
        _adapt_torch(core, has_values=settings.values is not None)
        operators = DescribedOperators(ask_for_description)
        follow_extensions(core, operators.implement)
        finder = follow_packages(
            _watcher(core, steps, flat_buffers, operators),
            Package(name="torch", adaptations=follow_compiler(core, stop_if_done=steps.stop_if_done)),
            mpi4py.package(place=lambda: (groups.rank, groups.world_size), new_group=groups.new_line),
            *(() if observer is None else observer.packages),
            without=settings.without,
        )
        follow_descriptions(core, finder, operators)
        if settings.costs:
            runpy.run_path(settings.costs)
        follow_futures(core)
        _set_routing(core, settings.routing)
        MessageRecorder(core, channel, groups, steps).install()
        core.set_operator_limit(settings.max_operators, _stopper("max-operators"))
        core.set_recording(True)
        watchers = _Watchers(
            channel=channel,
            groups=groups,
            steps=steps,
            skipped=skipped,
            flat_buffers=flat_buffers,
            host_memory=host_memory,
            observer=observer,
        )
        return cls(settings, core, watchers)

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
        self._follower = Follower(
            seconds=settings.follow_seconds, num_epochs=settings.num_epochs, world_size=settings.world_size
        )
        self._groups.become(rank=settings.rank, world_size=settings.world_size)
        self._base_seconds = _core_seconds()

    @property
    def loaders(self) -> tuple[tuple[str, int, int, bool], ...]:
        """What is known of the data loaders of the script."""
        return tuple((*state,) for state in self._loaders.states)

    @property
    def made_groups(self) -> tuple[tuple[tuple[int, ...], str, int], ...]:
        """The groups that `new_group` was called for."""
        return tuple(self._groups.made)

    @property
    def is_followed(self) -> bool:
        """Whether all wanted steps were captured, and the script went on."""
        return self._frozen is not None

    def _follow(self, step_seconds: float) -> float:
        """Keep the records as they are, and return until when the script may go on."""
        if not self._follower.is_worthwhile(step_seconds):
            return 0.0
        self._frozen = self._build("steps")
        self._frozen_observations = self._observed()
        self._core.set_recording(False)
        if self._observer is not None:
            self._observer.follow()
        self._loaders.max_epochs = self._follower.num_epochs
        return self._follower.begin()

    def observations(self) -> Observations | None:
        """Return what was observed, if anything was to be, some of it after the records."""
        if self._observer is None or self._frozen_observations is None:
            return self._observed()
        return self._observer.with_followed(self._frozen_observations)

    def _observed(self) -> Observations | None:
        if self._observer is None:
            return None
        core, calls = self._core, self._core.calls()
        return self._observer.finish(
            self._settings.rank,
            _columns(core.records(), _RECORD_TYPES),
            _columns(calls, _CALL_TYPES),
            {"ops": calls["ops"], "reduces": _REDUCES},
            self._groups.own,
        )

    def finish(self, stop_reason: str) -> RankRecords:
        """Stop recording and return the records."""
        self._follower.end()
        self._core.set_recording(False)
        if self._values is not None:
            self._values.finish(self._settings.rank, [group.ranks for group in self._groups.own])
        self._files.stop()
        return self._build(stop_reason) if self._frozen is None else self._frozen

    def _build(self, stop_reason: str) -> RankRecords:
        core = self._core
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


def _step_listener(channel: RankChannel, looks: Sequence[Callable[[], None]]) -> Callable[[int], None]:
    """Return what to call when a step has ended: it looks at what is held, and reports now and then."""
    next_report = 0.0

    def end_step(number: int) -> None:
        nonlocal next_report
        for look in looks:
            look()
        now = time.monotonic()
        if now >= next_report:
            channel.report(StepEnded(number))
            next_report = now + _REPORT_SECONDS

    return end_step


def _record_values(core: ModuleType, settings: RankSettings, steps: StepCounter) -> ValueRecorder | None:
    """Have all values computed and saved, if they are wanted."""
    if settings.values is None:
        return None
    values = ValueRecorder(core, settings.values)
    values.install()
    steps.on_backward = values.begin_backward, values.end_backward
    return values


def _watch_host(channel: RankChannel) -> None:
    watch = HostWatch(script_place)
    watch.install()
    channel.host_time = lambda: (*watch.read(),)


def _adapt_torch(core: ModuleType, *, has_values: bool) -> None:
    from sandtable.vgpu.host_updates import follow_host_updates  # it imports torch

    adapt(core, has_values=has_values)
    adapt_checkpoints(core)
    adapt_list_shardings()
    follow_host_updates()


def _set_routing(core: ModuleType, routing: Routing) -> None:
    core.set_routing(routing.name, routing.zipf, routing.weights)
    if routing.differs_by_layer:
        follow_layers(core)


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
