"""WHAT EACH RANK DID: records per rank, groups, classes of equal ranks, and the file that holds them.

A capture gives one `RankRecords` per rank. `Trace.assemble` combines them, `Trace.save` and `Trace.load` store
them, `trace.rank(r)` shows any rank of the run, and `summarise_trace(trace)` adds up. Nothing here needs torch.
"""

from sandtable.trace.columns import Calls, Records
from sandtable.trace.flops import flops
from sandtable.trace.groups import Group, GroupTable
from sandtable.trace.kinds import (
    MISSING_PACKAGE,
    NO_STEPS,
    P2P_OPS,
    ROOTED_OPS,
    SKIPPED_UPDATES,
    TO_THE_END,
    Kind,
    Phase,
    SyncKind,
)
from sandtable.trace.lines import Line
from sandtable.trace.movement import bytes_moved
from sandtable.trace.observations import (
    Draw,
    EventKind,
    GradientScale,
    HeldParameters,
    InputCopy,
    LostGather,
    MeanLoss,
    Observations,
    Race,
    RaceKind,
    ScriptEvent,
    Snapshot,
    WatchedParameter,
)
from sandtable.trace.observed_calls import CallIdentity, ObservedCalls
from sandtable.trace.progress import RankProgress, progress_of
from sandtable.trace.records import FlatBuffer, MemoryPeaks, Note, RankRecords, ReducedBucket, Splits
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
from sandtable.trace.signature import Signature, SignatureTable, TensorSpec
from sandtable.trace.summary import (
    CaptureSummary,
    ClassSummary,
    NoteSummary,
    SyncPoint,
    Traffic,
    format_ranks,
    summarise_trace,
)
from sandtable.trace.trace import FILE_NAME, RunFacts, Trace
from sandtable.trace.view import Collective, Operator, RankClass, RankView
from sandtable.trace.work import Work

__all__ = [
    "FILE_NAME",
    "MISSING_PACKAGE",
    "NO_STEPS",
    "P2P_OPS",
    "ROOTED_OPS",
    "SKIPPED_UPDATES",
    "TO_THE_END",
    "CacheFlush",
    "CallIdentity",
    "Calls",
    "CaptureSummary",
    "CheckpointRead",
    "CheckpointedCall",
    "ClassSummary",
    "Collective",
    "DeviceUse",
    "Draw",
    "EventKind",
    "FlatBuffer",
    "GradientScale",
    "Group",
    "GroupTable",
    "HeldParameters",
    "HostRead",
    "HostTensor",
    "InputCopy",
    "InputWait",
    "Kind",
    "Line",
    "LostGather",
    "MeanLoss",
    "MemoryMark",
    "MemoryPeaks",
    "Note",
    "NoteSummary",
    "Observations",
    "ObservedCalls",
    "Operator",
    "Phase",
    "Race",
    "RaceKind",
    "RankClass",
    "RankProgress",
    "RankRecords",
    "RankView",
    "Records",
    "ReducedBucket",
    "RunFacts",
    "ScriptEvent",
    "Signature",
    "SignatureTable",
    "Snapshot",
    "Splits",
    "SyncKind",
    "SyncPoint",
    "TensorHolder",
    "TensorSpec",
    "Trace",
    "Traffic",
    "WatchedParameter",
    "Work",
    "bytes_moved",
    "flops",
    "format_ranks",
    "progress_of",
    "summarise_trace",
]
