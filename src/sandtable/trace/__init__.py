"""What each rank did: records per rank, groups, classes of equal ranks, and the file they are kept in.

A capture hands over one `RankRecords` a rank; `Trace.assemble` puts them together, `Trace.save` and `Trace.load` keep
them, `trace.rank(r)` shows any rank of the run, `summarise(trace)` adds up. Nothing here needs torch.
"""

from sandtable.trace.columns import Calls, Records
from sandtable.trace.flops import flops
from sandtable.trace.groups import Group, GroupTable
from sandtable.trace.kinds import P2P_OPS, ROOTED_OPS, TO_THE_END, Kind, Phase, SyncKind
from sandtable.trace.movement import bytes_moved
from sandtable.trace.records import Line, MemoryPeaks, Note, RankRecords, Splits
from sandtable.trace.signature import Signature, SignatureTable, TensorSpec
from sandtable.trace.summary import (
    ClassSummary,
    NoteSummary,
    Summary,
    SyncPoint,
    Traffic,
    format_ranks,
    summarise,
)
from sandtable.trace.trace import FILE_NAME, Run, Trace
from sandtable.trace.view import Collective, Operator, RankClass, RankView

__all__ = [
    "FILE_NAME",
    "P2P_OPS",
    "ROOTED_OPS",
    "TO_THE_END",
    "Calls",
    "ClassSummary",
    "Collective",
    "Group",
    "GroupTable",
    "Kind",
    "Line",
    "MemoryPeaks",
    "Note",
    "NoteSummary",
    "Operator",
    "Phase",
    "RankClass",
    "RankRecords",
    "RankView",
    "Records",
    "Run",
    "Signature",
    "SignatureTable",
    "Splits",
    "Summary",
    "SyncKind",
    "SyncPoint",
    "TensorSpec",
    "Trace",
    "Traffic",
    "bytes_moved",
    "flops",
    "format_ranks",
    "summarise",
]
