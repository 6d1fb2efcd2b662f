"""The observer of a rank: all that is noted of its script for the rules of `check`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.trace import (
    CheckpointedCall,
    Draw,
    EventKind,
    Group,
    InputCopy,
    Kind,
    Line,
    LostGather,
    MeanLoss,
    Observations,
    ObservedCalls,
    Phase,
    Race,
    RaceKind,
)
from sandtable.vgpu.observing.batch_norms import follow_batch_norms
from sandtable.vgpu.observing.clipping import follow_clipping
from sandtable.vgpu.observing.data_parallel import DataParallelWatcher
from sandtable.vgpu.observing.data_sets import follow_subsets
from sandtable.vgpu.observing.events import EventLog, safely
from sandtable.vgpu.observing.files import follow_files
from sandtable.vgpu.observing.frameworks import observed_frameworks
from sandtable.vgpu.observing.host_views import follow_host_views
from sandtable.vgpu.observing.loaded_states import follow_loaded_states
from sandtable.vgpu.observing.loading import PassWatcher
from sandtable.vgpu.observing.losses import LossReader
from sandtable.vgpu.observing.number_reads import follow_number_reads
from sandtable.vgpu.observing.parameters import ParameterWatcher
from sandtable.vgpu.observing.replacements import follow_replacements
from sandtable.vgpu.observing.replicated import follow_replicated
from sandtable.vgpu.observing.resources import ResourceWatcher, device_uses, host_reads
from sandtable.vgpu.observing.restored import follow_restored
from sandtable.vgpu.observing.seeds import follow_seeds
from sandtable.vgpu.observing.training import follow_training
from sandtable.vgpu.observing.whole_tensors import follow_whole_tensors
from sandtable.vgpu.observing.wrappers import WrapperWatcher
from sandtable.vgpu.packages import Package

__all__ = ["Observer", "observe"]

_MOST_CALLS = 20_000
_CALL_COLUMNS = {
    "op": "op",
    "reduce": "reduce",
    "group": "group",
    "number": "seq",
    "num_bytes": "bytes_in",
    "place": "line",
}
_RACE_KINDS = tuple(RaceKind)
_FOLLOWED = frozenset(
    {EventKind.LOADER, EventKind.LOADER_END, EventKind.SAMPLER, EventKind.SET_EPOCH, EventKind.PADDED_GATHER}
)

Columns = Mapping[str, npt.NDArray[Any]]


class Observer:
    """Notes what the script of this process does, from `install` to `finish`."""

    def __init__(self, core: ModuleType, groups: Sequence[Group], *, num_steps: int) -> None:
        self._core = core
        self.log = EventLog(core)
        self._parameters = ParameterWatcher(self.log, groups)
        self._resources = ResourceWatcher(self.log, num_steps=num_steps)
        self._data_parallel = DataParallelWatcher(self.log)
        self._loaders = PassWatcher(self.log)
        self._losses = LossReader(core)
        self._wrappers = WrapperWatcher(self.log, self._parameters)
        gradients = self._parameters.gradients
        # A script may make hundreds of backward passes in a step, so these are wrapped once.
        self._begins = _all_safely(
            self._parameters.begin_backward, gradients.begin_backward, self._loaders.begin_backward
        )
        self._begin_wrappers = safely(self._wrappers.begin_backward)
        self._ends = _all_safely(gradients.end_backward, self._wrappers.end_backward)
        self._end_parameters = safely(self._parameters.end_backward)
        self._end_steps = _all_safely(
            self._parameters.take_parameters, self._resources.end_step, self._data_parallel.end_step
        )

    def install(self) -> None:
        """Watch torch, and have the core follow identities and races."""
        self._core.follow_identities(True)
        self._core.follow_races(True)
        self._parameters.install()
        self._resources.install()
        self._data_parallel.install()
        self._wrappers.install()
        self._loaders.install()
        follow_batch_norms(self.log)
        follow_loaded_states(self.log)
        follow_replicated(self.log)
        follow_restored(self.log)
        follow_seeds(self.log)
        follow_subsets(self.log)
        follow_files(self.log, self._core)
        follow_host_views(self._core)
        follow_replacements(self.log, self._parameters.has_optimizer)
        follow_clipping(self.log, self._parameters)
        follow_training(self.log)
        follow_number_reads(self.log)
        follow_whole_tensors(self.log)

    @property
    def packages(self) -> tuple[Package, ...]:
        """What is watched in packages that the script may import."""
        return observed_frameworks(self.log, self._parameters)

    def follow(self) -> None:
        """Note from now on only which epochs begin and end, what is saved, and whether replicas become one again."""
        self._core.follow_identities(self._parameters.follow())
        self._core.follow_races(False)
        self._resources.stop()
        self.log.only = _FOLLOWED

    def with_followed(self, observations: Observations) -> Observations:
        """Return what was observed in the captured steps, with what was noted since."""
        snapshots = (*observations.snapshots, *self._parameters.followed)
        return replace(observations, events=tuple(self.log.events), snapshots=snapshots)

    def begin_backward(self, roots: Sequence[Any]) -> None:
        """Note that a backward pass begins at these losses."""
        for look in self._begins:
            look()
        self.log.note(EventKind.BACKWARD, **self._losses.facts_of(roots))
        self._begin_wrappers()

    def end_backward(self) -> None:
        """Note that a backward pass has ended."""
        for look in self._ends:
            look()
        self.log.note(EventKind.BACKWARD_END)
        self._end_parameters()

    def end_step(self) -> None:
        """Look at all parameters after an update, and at what is held."""
        for look in self._end_steps:
            look()

    def finish(
        self, rank: int, records: Columns, calls: Columns, tables: Mapping[str, Sequence[str]], groups: Sequence[Group]
    ) -> Observations:
        """Return what was observed. `records` and `calls` are the columns as they were written."""
        core = self._core
        self._parameters.take_last()
        self._loaders.finish()
        return Observations(
            rank=rank,
            events=tuple(self.log.events),
            parameters=self._parameters.parameters,
            optimizers=self._parameters.optimizers,
            snapshots=tuple(self._parameters.snapshots),
            scales=tuple(self._parameters.scales),
            loss_factors=tuple(core.small_factors()),
            host_copies=tuple(
                InputCopy(identity=identity, num_bytes=size, place=Line(*place), row=row)
                for identity, size, place, row in core.host_copies()
            ),
            draws=tuple(
                Draw(identity=identity, num_elements=size, place=Line(*place), row=row)
                for identity, size, place, row in core.draws()
            ),
            calls=_calls(core, records, calls, tables, groups),
            races=tuple(_race(race) for race in core.races()),
            mean_losses=tuple(
                MeanLoss(num_targets=count, place=Line(*place), row=row) for count, place, row in core.mean_losses()
            ),
            device_uses=device_uses(core),
            memory_marks=tuple(self._resources.marks),
            holders=tuple(self._resources.retention.holders.values()),
            host_reads=host_reads(core),
            cache_flushes=tuple(self._resources.flushes),
            checkpoint_reads=tuple(self._resources.reads),
            input_waits=tuple(self._resources.waits),
            host_tensors=self._resources.host_tensors,
            checkpointed_calls=tuple(
                CheckpointedCall(count=count, place=place) for place, count in self._resources.checkpointed.items()
            ),
            lost_gathers=tuple(
                LostGather(gather=Line(*gather), place=Line(*place), row=row)
                for gather, place, row in core.lost_gathers()
            ),
        )


def observe(core: ModuleType, groups: Sequence[Group], *, num_steps: int) -> Observer:
    """Begin to observe this process for some steps; `groups` are those it belongs to, in order, as they are made."""
    observer = Observer(core, groups, num_steps=num_steps)
    observer.install()
    return observer


def _all_safely(*looks: Callable[[], object]) -> tuple[Callable[[], None], ...]:
    return tuple(map(safely, looks))


def _calls(
    core: ModuleType, records: Columns, calls: Columns, tables: Mapping[str, Sequence[str]], groups: Sequence[Group]
) -> ObservedCalls:
    """Return the collectives of this rank on the card, as far as their identities are known."""
    rows = np.flatnonzero(records["kind"] == Kind.COLLECTIVE)[:_MOST_CALLS]
    refs = records["ref"][rows]
    columns = {name: calls[column][refs] for name, column in _CALL_COLUMNS.items()}
    identities = np.frombuffer(core.call_identities(), dtype=np.uint64)
    columns |= {"identity": identities[refs], "phase": records["phase"][rows], "row": rows}
    columns["group"] = np.minimum(columns["group"], len(groups))  # the last stands for those that are not known
    return ObservedCalls(
        columns,
        {
            "op": tables["ops"],
            "reduce": tables["reduces"],
            "group": [*(group.ranks for group in groups), ()],
            "phase": [phase.name.lower() for phase in Phase],
            "place": [Line(*line) for line in core.lines()],
        },
    )


def _race(row: tuple[Any, ...]) -> Race:
    kind, earlier, earlier_place, earlier_stream, is_earlier_call, later, later_place, later_stream, is_later_call = row
    return Race(
        kind=_RACE_KINDS[kind],
        earlier=earlier,
        earlier_place=Line(*earlier_place),
        earlier_stream=earlier_stream,
        is_earlier_call=is_earlier_call,
        later=later,
        later_place=Line(*later_place),
        later_stream=later_stream,
        is_later_call=is_later_call,
    )
