"""Perfetto: the timeline of chosen ranks as a Chrome trace (`trace.json.gz`), for ui.perfetto.dev or chrome://tracing.

Each rank is a process; its host and each of its streams are threads. Times are microseconds from the start of the step.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sandtable.engine.columns import CATEGORIES, HostColumns, SpanColumns
from sandtable.engine.timeline import Timeline
from sandtable.trace import Phase
from sandtable.units import NS_PER_US

__all__ = ["write_perfetto"]

MAX_EVENTS = 400_000
_LEVEL = 4
_HOST_THREAD = 1_000_000
"""Above the number of any stream."""


def write_perfetto(timeline: Timeline, ranks: Sequence[int], path: Path, *, max_events: int = MAX_EVENTS) -> list[int]:
    """Write the trace, and return the ranks in it: the first, and the others up to `max_events` events in all."""
    written: list[int] = []
    num_events = 0
    # No time stamp and no name in the header: the same timeline gives the same bytes.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for rank in ranks:
            spans, host = timeline.span_columns(rank), timeline.host_columns(rank)
            if written and num_events + len(spans) > max_events:
                continue
            num_events += len(spans)
            head = ",\n" if written else ""
            events = [*_events(timeline, rank, spans), *_host_events(timeline, rank, host)]
            file.write((head + ",\n".join(events)).encode())
            written.append(rank)
        file.write(b"\n]}\n")
    return written


def _events(timeline: Timeline, rank: int, spans: SpanColumns) -> Iterator[str]:
    alike = len(timeline.actor_of(rank).ranks)
    name = f"rank {rank}" + (f" (and {alike - 1} like it)" if alike > 1 else "")
    yield _about("process_name", rank, 0, {"name": name})
    yield _about("process_sort_index", rank, 0, {"sort_index": rank})
    for stream in np.unique(spans.stream).tolist():
        yield _about("thread_name", rank, stream, {"name": _stream_name(spans, stream)})
        yield _about("thread_sort_index", rank, stream, {"sort_index": stream})
    names = [json.dumps(text) for text in spans.names]
    axes = [f',"axis":{json.dumps(axis)}' if axis else "" for axis in spans.axes]
    phases = [phase.name.lower() for phase in Phase]
    lines = {int(line): json.dumps(str(timeline.trace.lines[int(line)])) for line in np.unique(spans.line)}
    starts = (spans.start_ns - timeline.step_start_ns) / NS_PER_US
    columns = (starts, (spans.end_ns - spans.start_ns) / NS_PER_US, spans.stream, spans.name, spans.category)
    more = (spans.phase, spans.axis, spans.line, spans.bytes, spans.flops)
    for ts, dur, stream, label, category, phase, axis, line, size, work in zip(
        *(column.tolist() for column in columns + more), strict=True
    ):
        yield (
            f'{{"ph":"X","pid":{rank},"tid":{stream},"ts":{ts:.3f},"dur":{dur:.3f},"name":{names[label]},'
            f'"cat":"{CATEGORIES[category]}","args":{{"phase":"{phases[phase]}"{axes[axis]},"bytes":{size},'
            f'"flops":{work:.0f},"line":{lines[line]}}}}}'
        )


def _host_events(timeline: Timeline, rank: int, host: HostColumns) -> Iterator[str]:
    yield _about("thread_name", rank, _HOST_THREAD, {"name": "host"})
    yield _about("thread_sort_index", rank, _HOST_THREAD, {"sort_index": -1})
    lines = {int(line): json.dumps(str(timeline.trace.lines[int(line)])) for line in np.unique(host.line)}
    starts = (host.start_ns - timeline.step_start_ns) / NS_PER_US
    columns = (starts, (host.end_ns - host.start_ns) / NS_PER_US, host.waits, host.count, host.line)
    for ts, dur, waits, count, line in zip(*(column.tolist() for column in columns), strict=True):
        name = "wait for the device" if waits else "issue"
        yield (
            f'{{"ph":"X","pid":{rank},"tid":{_HOST_THREAD},"ts":{ts:.3f},"dur":{dur:.3f},"name":"{name}",'
            f'"cat":"host","args":{{"records":{count},"line":{lines[line]}}}}}'
        )


def _stream_name(spans: SpanColumns, stream: int) -> str:
    """Name a stream after what it mostly does: compute, or communication along an axis."""
    mine = spans.stream == stream
    length = spans.end_ns - spans.start_ns
    if (mine & (spans.category == CATEGORIES.index("compute"))).any():
        return f"stream {stream} (compute)"
    by_axis = np.bincount(spans.axis[mine], weights=length[mine], minlength=1)
    axis = spans.axes[int(by_axis.argmax())]
    return f"stream {stream} ({axis or 'communication'})"


def _about(name: str, pid: int, tid: int, args: dict[str, object]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}, separators=(",", ":"))
