"""Resources: what one rank was seen to take of cards, of host memory and of its host's time.

Part of the observations (`observations.py`): the records say what happens on the rank's own card, these say which card
it was, who holds memory from step to step, and where the host waited.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandtable.trace.lines import Line

__all__ = [
    "CacheFlush",
    "CheckpointRead",
    "CheckpointedCall",
    "DeviceUse",
    "HostRead",
    "HostTensor",
    "InputWait",
    "MemoryMark",
    "TensorHolder",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What a line of the script took of one card, whether or not it gave it back."""

    device: int
    is_call: bool
    """Whether this is the first collective on the card; else it is memory."""
    num_bytes: int
    place: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMark:
    """What tensors that a line of the script made hold on the cards at the end of a step."""

    step: int
    num_bytes: int
    num_tensors: int
    place: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHolder:
    """A container of the script, or a tensor, that holds more from step to step."""

    name: str
    """As the script calls it: `losses`, `self.outputs`."""
    kind: str
    """Its class; "graph" for a tensor whose history reaches back over several steps."""
    num_tensors: int
    has_graph: bool
    """Whether it keeps what a backward pass would need."""
    place: Line
    """Where something is added to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """How often the host waited for the card at a line; `library` is the file of the library that did, if any."""

    kind: int
    """A `SyncKind`."""
    count: int
    library: str
    place: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFlush:
    """The script called `torch.cuda.empty_cache`."""

    row: int
    step: int
    place: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRead:
    """The script read a file with `torch.load`."""

    path: str
    file_bytes: int
    bytes_on_device: tuple[tuple[int, int], ...]
    """(Card, bytes) of what the file's tensors took of cards; the rest is in host memory."""
    is_mapped: bool
    """Whether the ranks of a node share its pages (`mmap=True`)."""
    place: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedCall:
    """How often a line of the script ran a part of the model whose activations are computed again."""

    count: int
    place: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTensor:
    """A large tensor or array that a variable of the script holds in host memory; `digest` is of a sample of it."""

    name: str
    num_bytes: int
    digest: int
    place: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class InputWait:
    """How long this machine took for one batch of a data loader."""

    loader: int
    batch: int
    step: int
    nanoseconds: int
    """Without the time for which other processes had the cores of this machine."""
    num_workers: int
    place: Line
