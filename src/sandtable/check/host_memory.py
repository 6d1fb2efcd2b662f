"""Host memory: what each rank of a node reads or keeps there, times their number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import CheckpointRead, HostTensor, Trace
from sandtable.units import GIB, format_bytes

__all__ = ["host_copies"]

_LEAST_BYTES = GIB // 2
_LARGE_BYTES = 256 * GIB
"""What the ranks of a node may hold together: nodes with eight cards have 1 to 2 TiB of host memory, some 0.5."""

_USUAL_BYTES = 1024 * GIB


def host_copies(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report files that every rank of a node reads into host memory, and tensors that fill it."""
    yield from _files(trace)
    yield from _tensors(trace)
    for row in trace.classes:
        memory = trace.rank(row.representative).memory
        on_node = memory.host_bytes * min(row.size, trace.ranks_per_node)
        if on_node > _LARGE_BYTES:
            yield Finding(
                rule="host-copies",
                severity=Severity.WARNING if on_node > _USUAL_BYTES else Severity.NOTE,
                message="what all ranks of a node keep in host memory must fit there, but each keeps "
                f"{format_bytes(memory.host_bytes)}, together {format_bytes(on_node)}",
                ranks=row.ranks,
                remedy="keep one copy per node: memory-mapped files (numpy.memmap, torch.load(mmap=True)), or shared "
                "memory",
            )


def _tensors(trace: Trace) -> Iterator[Finding]:
    """Yield what is in host memory once per rank of a node, with the same numbers."""
    holders: dict[tuple[str, int], list[tuple[int, HostTensor]]] = defaultdict(list)
    for rank, seen in trace.observations.items():
        for tensor in seen.host_tensors:
            holders[tensor.name, tensor.digest].append((rank, tensor))
    on_node = min(trace.ranks_per_node, trace.world_size)
    for (name, _), copies in holders.items():
        tensor, ranks = copies[0][1], tuple(rank for rank, _ in copies)
        total = tensor.num_bytes * on_node
        if len(ranks) < 2 or on_node < 2 or total < _LEAST_BYTES:
            continue
        yield Finding(
            rule="host-copies",
            severity=Severity.WARNING if total > _LARGE_BYTES else Severity.NOTE,
            message=f"one copy of the data in host memory is enough, but all {on_node} ranks of a node keep the same "
            f"{format_bytes(tensor.num_bytes)} in {name}, {format_bytes(total)} together",
            ranks=ranks,
            evidence=(at_line(ranks, f"makes {name}", tensor.place),),
            remedy="let the ranks of a node share it (numpy.memmap, torch.load(mmap=True), tensors in shared memory), "
            "or read only the rank's own part",
        )


def _files(trace: Trace) -> Iterator[Finding]:
    readers: dict[str, list[tuple[int, CheckpointRead]]] = defaultdict(list)
    for rank, seen in trace.observations.items():
        for read in seen.checkpoint_reads:
            on_cards = sum(num_bytes for _, num_bytes in read.bytes_on_device)
            if read.path and not read.is_mapped and on_cards < read.file_bytes / 2:
                readers[read.path].append((rank, read))
    for path, reads in readers.items():
        ranks = tuple(dict.fromkeys(rank for rank, _ in reads))
        on_node = min(trace.ranks_per_node, trace.world_size)
        total = reads[0][1].file_bytes * on_node
        if len(ranks) < 2 or on_node < 2 or total < _LEAST_BYTES:
            continue
        place = reads[0][1].place
        yield Finding(
            rule="host-copies",
            severity=Severity.WARNING if total > _LARGE_BYTES else Severity.NOTE,
            message=f"one copy of a file in host memory is enough, but all {on_node} ranks of a node read "
            f"{format_bytes(reads[0][1].file_bytes)} each, {format_bytes(total)} together",
            ranks=ranks,
            evidence=(at_line(ranks, f"reads {path}", place),),
            remedy="read it with torch.load(path, mmap=True), so that ranks share the pages; or on one rank, and "
            "broadcast the weights (torch.distributed.checkpoint reads what each rank needs)",
        )
