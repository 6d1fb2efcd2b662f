"""Observations: what one rank was seen to do that is not work, and so takes no time.

Records say what the card does. Mistakes are often elsewhere: which parameters an optimizer holds, which samples a rank
read, whether gradients were clipped before they were unscaled. So a capture also notes what the script asked of torch,
in order, and of tensors their *identities*: two tensors of equal identity hold the same numbers, on whichever ranks
they are, because they were computed in the same way from the same numbers. Identity 0 means that nothing is known.

`row` puts an observation between the records of its rank as they were written: of two observations, the one with the
smaller row came first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any

from sandtable.trace.lines import Line
from sandtable.trace.observed_calls import CallIdentity, ObservedCalls
from sandtable.trace.resources import (
    CacheFlush,
    CheckpointedCall,
    CheckpointRead,
    DeviceUse,
    HostRead,
    HostTensor,
    InputWait,
    MemoryMark,
    TensorHolder,
)

__all__ = [
    "Draw",
    "EventKind",
    "GradientScale",
    "HeldParameters",
    "InputCopy",
    "LostGather",
    "MeanLoss",
    "Observations",
    "Race",
    "RaceKind",
    "ScriptEvent",
    "Snapshot",
    "WatchedParameter",
]

_NOWHERE = Line()


class EventKind(StrEnum):
    """What the script asked of torch. `subject` numbers the object concerned, separately for each kind of object."""

    OPTIMIZER_MADE = "optimizer made"
    OPTIMIZER_STEP = "optimizer step"
    CHANGED = "changed"
    """Parameters were changed outside of an update; `parameters` are their indices."""
    ZERO_GRAD = "zero grad"
    """Of an optimizer (`subject`), or of a module (`of`: "module")."""
    BACKWARD = "backward"
    """A backward pass begins; BACKWARD_END follows. `factor` is what the loss was multiplied by since it was a mean, as
    far as it is one (`is_mean`); `is_cut` tells of a loss that has no graph."""
    BACKWARD_END = "backward end"
    SCALE = "scale"
    """A GradScaler multiplies a loss by `factor`."""
    UNSCALE = "unscale"
    SCALER_STEP = "scaler step"
    CLIP = "clip"
    """`how` is "norm" or "value"; `parameters` are indices into the watched ones."""
    SCHEDULER_STEP = "scheduler step"
    WRAPPED = "wrapped"
    """A module was wrapped for data parallelism; `wrapper` is the name of the class."""
    SHARDED = "sharded"
    """A module was given to FSDP, which averages its gradients between the ranks of `group`."""
    FORWARD = "forward"
    """A wrapper, or the module inside one, is called from outside; `wrapper` is the class, or "inside"."""
    WRAPPER_BACKWARD = "wrapper backward"
    """A backward pass begins, told of each wrapper: whether it has seen the forward pass, and whether the pass wrote
    gradients of its module."""
    REPLACED = "replaced"
    """A model may get new parameters after an optimizer was made; `how` says by what."""
    MOVED = "moved"
    """A wrapper, or the module inside one, is moved or converted."""
    NO_SYNC = "no sync"
    LOADER = "loader"
    """An iteration over a data loader begins; its facts are the loader's settings."""
    LOADER_END = "loader end"
    SAMPLER = "sampler"
    """An iteration over a sampler of torch that shards begins."""
    SET_EPOCH = "set epoch"
    NUMBER_READ = "number read"
    """The script reads a number from the card; `identity` and `outline` say which, as text."""
    FRAMEWORK_BACKWARD = "framework backward"
    """A backward pass is asked of a framework that divides the loss by `num_micro_batches`; ENGINE_STEP of its step."""
    ENGINE_STEP = "engine step"
    PADDED_GATHER = "padded gather"
    """The last batch of a pass is gathered, of which only `num_real` samples are no padding."""
    OWN_METRIC = "own metric"
    """Lightning is given a metric (`name`) by which it decides, and is not told to share it between ranks."""
    REPLICATED = "replicated"
    """A tensor is declared to be the same on all ranks of `group`."""
    NOTHING_LOADED = "nothing loaded"
    """A module loaded a state of which no name fits."""
    CONVERSION_LOST = "conversion lost"
    """DDP wraps batch norms (`names`) that were converted to SyncBatchNorm on another line, to no avail."""
    LOADED = "loaded"
    """A file is loaded that `holds` states of an optimizer or a scheduler; RESTORED says `what` takes one over."""
    RESTORED = "restored"
    RANDOM_STATE = "random state"
    """A generator gets a state; `old` and `new` are digests of what it had and of what it gets."""
    BATCH_NORMS = "batch norms"
    """DDP wraps a module with batch norms (`names`) that share nothing between ranks."""
    SEEDED = "seeded"
    """The generator of a library gets a `seed`; `how` is the function."""
    SUBSET = "subset"
    """A part of a data set is cut out: `indices` of the one with the fingerprint `data`."""
    READ = "read"
    """A file is opened to be read, or (WRITE) to be written; `path` is its real one."""
    WRITE = "write"
    SAVE = "save"
    """A checkpoint has been written to `path`, of `num_bytes`."""
    GATHER = "gather"
    """The script asks for a sharded tensor, or for the weights of a sharded module, whole."""
    UNUSED_PARAMETERS = "unused parameters"
    """How many bytes of parameters (`num_unused`) the module that DDP wraps did not use in the step that ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEvent:
    """Something that the script asked of torch; `facts` are what rules need to know of it."""

    kind: EventKind
    row: int
    place: Line
    subject: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedParameter:
    """A parameter of a module of the script. `root` numbers the outermost modules, `name` is its path in one."""

    name: str
    root: int
    module: str
    """The class of the module that holds it."""
    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool
    is_sharded: bool
    """Whether ranks hold parts of it (DTensor, FSDP, ZeRO-3), so that theirs differ."""
    is_buffer: bool = False
    place: Line = _NOWHERE
    """Where its memory was asked for."""
    written: Line = _NOWHERE
    """Where it was last written before the first update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """What an optimizer holds: indices of watched parameters, -1 for a tensor that is none of them."""

    optimizer: int
    name: str
    parameters: tuple[int, ...]
    num_elements: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Identities of all watched tensors at one moment.

    `of` is "parameters" (at the start and right after each update), "before" (the same before each later update, and at
    the end), "gradients" (before each update) or "local gradients" (those that the last backward pass before it left).
    """

    of: str
    row: int
    step: int
    """How many updates had been made."""
    place: Line
    identities: tuple[int, ...]
    """Equal ones are equal numbers."""
    outlines: tuple[int, ...]
    """Different ones are different numbers: as identities, but that results of groups of one size count as the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientScale:
    """What became of the gradients of some parameters between their backward pass and an update.

    Or, with `of` "parameters", of the parameters themselves since the update before.
    """

    row: int
    step: int
    place: Line
    parameters: tuple[int, ...]
    factor: float
    """The product of all numbers that they were multiplied by."""
    groups: tuple[tuple[int, ...], ...]
    """The ranks of each group over which they were summed."""
    groups_again: tuple[tuple[int, ...], ...]
    """Those over which they were summed once more."""
    of: str = "gradients"
    written: Line = _NOWHERE
    """Where they were last written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCopy:
    """Numbers that the host copied to the card."""

    identity: int
    num_bytes: int
    place: Line
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Random numbers drawn on the card; equal identities are equal seeds and offsets."""

    identity: int
    num_elements: int
    place: Line
    row: int


class RaceKind(StrEnum):
    """What the later access does to the memory of the earlier one."""

    READ_AFTER_WRITE = "read after write"
    WRITE_AFTER_READ = "write after read"
    WRITE_AFTER_WRITE = "write after write"
    REUSED = "reused"
    """The memory was freed and handed out again while another stream might still use it."""
    HOST_READ = "host read"
    """The host reads pinned memory that a copy from the card might still write."""
    HOST_WRITE = "host write"
    """The host writes pinned memory that a copy might still use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Two kernels on different streams, or a copy and the host, that touch the same memory in no order."""

    kind: RaceKind
    earlier: str
    earlier_place: Line
    earlier_stream: int
    is_earlier_call: bool
    later: str
    later_place: Line
    later_stream: int
    is_later_call: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGather:
    """Activations of all ranks, gathered at `gather` in a way that gradients do not pass, and multiplied at `place`."""

    gather: Line
    place: Line
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLoss:
    """A loss that averages over the targets of one rank; ignored targets do not count, as far as they are known."""

    num_targets: int
    place: Line
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """All that was observed on one captured rank."""

    rank: int
    events: tuple[ScriptEvent, ...] = ()
    parameters: tuple[WatchedParameter, ...] = ()
    optimizers: tuple[HeldParameters, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    scales: tuple[GradientScale, ...] = ()
    loss_factors: tuple[float, ...] = ()
    """The numbers by which tensors of one element, such as losses, were multiplied or divided."""
    host_copies: tuple[InputCopy, ...] = ()
    draws: tuple[Draw, ...] = ()
    calls: Sequence[CallIdentity] = ()
    races: tuple[Race, ...] = ()
    device_uses: tuple[DeviceUse, ...] = ()
    memory_marks: tuple[MemoryMark, ...] = ()
    holders: tuple[TensorHolder, ...] = ()
    host_reads: tuple[HostRead, ...] = ()
    cache_flushes: tuple[CacheFlush, ...] = ()
    checkpoint_reads: tuple[CheckpointRead, ...] = ()
    input_waits: tuple[InputWait, ...] = ()
    checkpointed_calls: tuple[CheckpointedCall, ...] = ()
    host_tensors: tuple[HostTensor, ...] = ()
    lost_gathers: tuple[LostGather, ...] = ()
    mean_losses: tuple[MeanLoss, ...] = ()

    def of_kind(self, *kinds: EventKind) -> Iterator[ScriptEvent]:
        """Yield the events of these kinds, in order."""
        return (event for event in self.events if event.kind in kinds)

    def to_json(self) -> dict[str, object]:
        """Return the observations as lists for JSON; script lines are stored once."""
        lines: dict[Line, int] = {}
        document: dict[str, Any] = {"rank": self.rank, "loss_factors": self.loss_factors}
        for name, kind in _ROWS.items():
            names = [item.name for item in fields(kind)]
            document[name] = [[_plain(getattr(row, name), lines) for name in names] for row in getattr(self, name)]
        document["calls"] = ObservedCalls.of(self.calls).to_json()
        document["lines"] = [(line.file, line.line, line.function) for line in lines]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Observations:
        """Invert `to_json`."""
        lines = [Line(*row) for row in document["lines"]]
        rows = {name: _rows(kind, document[name], lines) for name, kind in _ROWS.items()}
        calls = ObservedCalls.from_json(document["calls"])
        return cls(rank=document["rank"], loss_factors=tuple(document["loss_factors"]), calls=calls, **rows)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file that a captured rank leaves for the launcher."""
        Path(path).write_text(json.dumps(self.to_json(), separators=(",", ":")), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Observations:
        """Read what `save` wrote."""
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


_ROWS: dict[str, Any] = {
    "events": ScriptEvent,
    "parameters": WatchedParameter,
    "optimizers": HeldParameters,
    "snapshots": Snapshot,
    "scales": GradientScale,
    "host_copies": InputCopy,
    "draws": Draw,
    "races": Race,
    "device_uses": DeviceUse,
    "memory_marks": MemoryMark,
    "holders": TensorHolder,
    "host_reads": HostRead,
    "cache_flushes": CacheFlush,
    "checkpoint_reads": CheckpointRead,
    "input_waits": InputWait,
    "checkpointed_calls": CheckpointedCall,
    "host_tensors": HostTensor,
    "lost_gathers": LostGather,
    "mean_losses": MeanLoss,
}


def _plain(value: Any, lines: dict[Line, int]) -> Any:
    return lines.setdefault(value, len(lines)) if isinstance(value, Line) else value


def _rows(kind: Any, rows: list[list[Any]], lines: list[Line]) -> tuple[Any, ...]:
    names = [item.name for item in fields(kind)]
    columns = [
        [_rich(item.type, value, lines) for value in column]
        for item, column in zip(fields(kind), zip(*rows, strict=True), strict=False)
    ]
    return tuple(kind(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True))


def _rich(annotation: Any, value: Any, lines: list[Line]) -> Any:
    """Return the value of a field as its class has it; `annotation` is the text of the field's type."""
    match annotation:
        case "int" | "str" | "bool" | "float":
            return value
        case "Line":
            return lines[value]
        case "EventKind":
            return EventKind(value)
        case "RaceKind":
            return RaceKind(value)
    return _frozen(value)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
