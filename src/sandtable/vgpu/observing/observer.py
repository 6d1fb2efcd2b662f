"""The observer of a rank: all that is noted of its script for the rules of `check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.trace import (
    CallIdentity,
    Draw,
    EventKind,
    Group,
    HostCopy,
    Kind,
    Line,
    LostGather,
    MeanLoss,
    Observations,
    Phase,
    Race,
    RaceKind,
)
from sandtable.vgpu.observing.clipping import follow_clipping
from sandtable.vgpu.observing.events import EventLog
from sandtable.vgpu.observing.files import follow_files
from sandtable.vgpu.observing.loading import LoaderWatcher
from sandtable.vgpu.observing.parameters import ParameterWatcher
from sandtable.vgpu.observing.replacements import follow_replacements
from sandtable.vgpu.observing.training import follow_training
from sandtable.vgpu.observing.wrappers import WrapperWatcher

__all__ = ["Observer", "observe"]

_MOST_CALLS = 20_000
_RACE_KINDS = tuple(RaceKind)

Columns = Mapping[str, npt.NDArray[Any]]


class Observer:
    """Notes what the script of this process does, from `install` to `finish`."""

    def __init__(self, core: ModuleType, groups: Sequence[Group]) -> None:
        self._core = core
        self.log = EventLog(core)
        self._parameters = ParameterWatcher(self.log, groups)
        self._loaders = LoaderWatcher(self.log)
        self._wrappers = WrapperWatcher(self.log, self._parameters.index_of)

    def install(self) -> None:
        """Watch torch, and have the core follow identities and races."""
        self._core.follow_identities(True)
        self._core.follow_races(True)
        self._parameters.install()
        self._wrappers.install()
        self._loaders.install()
        follow_files(self.log, self._core)
        follow_replacements(self.log, self._parameters.has_optimizer)
        follow_clipping(self.log, self._parameters)
        follow_training(self.log)

    def begin_backward(self) -> None:
        """Note that a backward pass begins."""
        self._parameters.gradients.begin_backward()
        self.log.note(EventKind.BACKWARD)
        self._wrappers.begin_backward()

    def end_backward(self) -> None:
        """Note that a backward pass has ended."""
        self._parameters.gradients.end_backward()
        self._wrappers.end_backward()
        self.log.note(EventKind.BACKWARD_END)

    def end_step(self) -> None:
        """Look at all parameters after an update."""
        self._parameters.take_parameters()

    def finish(
        self, rank: int, records: Columns, calls: Columns, tables: Mapping[str, Sequence[str]], groups: Sequence[Group]
    ) -> Observations:
        """Return what was observed. `records` and `calls` are the columns as they were written."""
        core = self._core
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
                HostCopy(identity=identity, num_bytes=size, place=Line(*place), row=row)
                for identity, size, place, row in core.host_copies()
            ),
            draws=tuple(
                Draw(identity=identity, num_elements=size, place=Line(*place), row=row)
                for identity, size, place, row in core.draws()
            ),
            calls=tuple(_calls(core, records, calls, tables, groups)),
            races=tuple(_race(*race) for race in core.races()),
            mean_losses=tuple(
                MeanLoss(num_targets=count, place=Line(*place), row=row) for count, place, row in core.mean_losses()
            ),
            lost_gathers=tuple(
                LostGather(gather=Line(*gather), place=Line(*place), row=row)
                for gather, place, row in core.lost_gathers()
            ),
        )


def observe(core: ModuleType, groups: Sequence[Group]) -> Observer:
    """Begin to observe this process; `groups` are those it belongs to, in order, as they are made."""
    observer = Observer(core, groups)
    observer.install()
    return observer


def _calls(
    core: ModuleType, records: Columns, calls: Columns, tables: Mapping[str, Sequence[str]], groups: Sequence[Group]
) -> list[CallIdentity]:
    """Return the collectives of this rank on the card, as far as their identities are known."""
    identities = np.frombuffer(core.call_identities(), dtype=np.uint64)
    lines = [Line(*line) for line in core.lines()]
    rows = np.flatnonzero(records["kind"] == Kind.COLLECTIVE)[:_MOST_CALLS]
    found = []
    for row in rows.tolist():
        call = int(records["ref"][row])
        identity = int(identities[call]) if call < len(identities) else 0
        group = int(calls["group"][call])
        found.append(
            CallIdentity(
                op=tables["ops"][int(calls["op"][call])],
                reduce=tables["reduces"][int(calls["reduce"][call])],
                group=groups[group].ranks if group < len(groups) else (),
                number=int(calls["seq"][call]),
                identity=identity,
                num_bytes=int(calls["bytes_in"][call]),
                phase=Phase(int(records["phase"][row])).name.lower(),
                place=lines[int(calls["line"][call])],
                row=row,
            )
        )
    return found


def _race(
    kind: int,
    earlier: str,
    earlier_place: tuple[str, int, str],
    earlier_stream: int,
    is_earlier_call: bool,
    later: str,
    later_place: tuple[str, int, str],
    later_stream: int,
    is_later_call: bool,
) -> Race:
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
