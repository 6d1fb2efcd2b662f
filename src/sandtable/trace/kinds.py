"""Kinds: the names of the small numbers in the columns of a trace."""

from enum import IntEnum

__all__ = [
    "MISSING_PACKAGE",
    "NO_STEPS",
    "P2P_OPS",
    "ROOTED_OPS",
    "SKIPPED_UPDATES",
    "TO_THE_END",
    "Kind",
    "LaunchKind",
    "Phase",
    "SyncKind",
]

P2P_OPS = frozenset({"send", "recv"})
"""Calls between two ranks; their `peer` is relative to the caller."""

ROOTED_OPS = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Collectives with a root; their `peer` is the root's position in the group."""

MISSING_PACKAGE = "missing package"
"""The note of a rank that used a replacement for a package that is not installed; it begins with the name."""

NO_STEPS = "no steps"
"""The note of a rank that made no step: what it did instead."""

SKIPPED_UPDATES = "skipped updates"
"""The note of a rank on which mixed precision left out updates: who did, and how often."""

TO_THE_END = "to the end"
"""The note of a rank that others wait for at any time: its work after its last step counts too."""


class Kind(IntEnum):
    """What a record is, and so what its `ref` and `value` mean."""

    OPERATOR = 0
    """A kernel: `ref` is its signature, `value` a `LaunchKind`."""
    COLLECTIVE = 1
    """A collective or point-to-point call is issued: `ref` is its row in `calls`, `value` a `LaunchKind`."""
    WAIT = 2
    """The stream waits for the call in row `ref` of `calls`."""
    EVENT_RECORD = 3
    """Event `ref` is recorded on the stream; `value` is a `LaunchKind`."""
    EVENT_WAIT = 4
    """The stream waits for event `ref`; `value` is a `LaunchKind`."""
    HOST_SYNC = 5
    """The host waits for the device: `value` is a `SyncKind`."""
    ALLOC = 6
    """Block `ref` of `value` bytes is allocated."""
    FREE = 7
    """Block `ref` of `value` bytes is freed."""
    STEP = 8
    """Step number `ref` ends."""
    SEGMENT_ALLOC = 9
    """The caching allocator requests `value` bytes from the device (cudaMalloc)."""
    SEGMENT_FREE = 10
    """The caching allocator returns `value` bytes to the device (cudaFree)."""


class Phase(IntEnum):
    """The part of a training step that a record belongs to."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    RECOMPUTE = 3


class LaunchKind(IntEnum):
    """How the host launches a kernel."""

    EAGER = 0
    """Through torch's dispatcher and the script's Python."""
    COMPILED = 1
    """From the code that a compiler wrote for a whole graph."""
    GRAPH = 2
    """As part of a CUDA graph, which is one launch."""
    CALL = 3
    """The first kernel of a compiled or a CUDA graph: with all that it takes to call the graph."""
    HOOKED = 4
    """Eagerly, while functions in Python take what autograd saves, as activation checkpointing has it."""


class SyncKind(IntEnum):
    """Why the host waited for the device."""

    DEVICE = 0
    STREAM = 1
    EVENT = 2
    ITEM = 3
    """A scalar was read: `item()`, `tolist()`, `if tensor:`."""
    COPY = 4
    """A blocking copy from device to host: `.cpu()`."""
    SHAPE = 5
    """A shape that depends on values: `nonzero`, boolean masks."""
