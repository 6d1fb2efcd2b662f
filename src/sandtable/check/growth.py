"""Growth: memory that a script holds on to in every step, until the card or the host is full."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import Line, Observations, TensorHolder, Trace
from sandtable.units import format_bytes

__all__ = ["memory_grows"]

_LEAST_BYTES = 1 << 20
"""Less per step, without a graph, is a metric."""

_FIRST_STEP = 1
"""What the first step makes (states of optimizers, buckets) may stay."""


def memory_grows(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report what holds more tensors after each step, once for all ranks that do so at the same lines."""
    found: dict[tuple[TensorHolder, ...], list[Observations]] = defaultdict(list)
    for seen in trace.observations.values():
        growth = _growth_by_line(seen)
        is_large = sum(growth.values()) >= _LEAST_BYTES
        holders = tuple(holder for holder in seen.holders if holder.has_graph or is_large)
        if holders or (is_large and _is_steady(seen)):
            found[holders].append(seen)
    for kept, observations in found.items():
        yield _finding(trace, kept, observations)


def _finding(trace: Trace, holders: tuple[TensorHolder, ...], observations: list[Observations]) -> Finding:
    ranks = tuple(seen.rank for seen in observations)
    growth = _growth_by_line(observations[0])
    return Finding(
        rule="memory-grows",
        severity=Severity.WARNING,
        message=f"a step must give back what it takes, but each one leaves {_amount(trace, ranks[0], growth)}",
        ranks=ranks,
        evidence=tuple(_evidence(ranks, holders, growth)),
        remedy="keep numbers, not tensors with their history: loss.item() every so many steps, or loss.detach(); what "
        "must be kept whole belongs into host memory (.detach().cpu()), and evaluation under torch.no_grad()",
    )


def _amount(trace: Trace, rank: int, growth: dict[Line, int]) -> str:
    total = sum(growth.values())
    if total < _LEAST_BYTES:
        return "the graph of its forward pass in host memory"
    memory = trace.rank(rank).memory
    rest = max(memory.capacity_bytes - memory.reserved_bytes, 0)
    return f"{format_bytes(total)} on the card, which is full after about {rest // total + trace.num_steps:,} steps"


def _evidence(ranks: tuple[int, ...], holders: tuple[TensorHolder, ...], growth: dict[Line, int]) -> Iterator[Evidence]:
    for holder in holders:
        if holder.kind == "graph":
            text = f"keeps the graphs of earlier steps in {holder.name}"
        else:
            text = f"holds {holder.num_tensors} tensors in {holder.name}, more after each step"
        yield at_line(ranks, text, holder.place)
    for place, num_bytes in sorted(growth.items(), key=lambda item: -item[1])[:3]:
        if num_bytes >= _LEAST_BYTES // 4 or not holders:
            text = f"makes {format_bytes(num_bytes)} per step that are not given back"
            yield at_line(ranks, text, place)


def _growth_by_line(seen: Observations) -> dict[Line, int]:
    """Return the bytes that each line holds more after each step, the least of all steps after the first."""
    steps = sorted({mark.step for mark in seen.memory_marks})
    if len(steps) < 3:
        return {}
    held: dict[Line, dict[int, int]] = defaultdict(dict)
    for mark in seen.memory_marks:
        held[mark.place][mark.step] = mark.num_bytes
    growth = {}
    for place, at in held.items():
        least = min(at.get(step + 1, 0) - at.get(step, 0) for step in steps[_FIRST_STEP - 1 : -1])
        if least > 0:
            growth[place] = least
    return growth


def _is_steady(seen: Observations) -> bool:
    """Return whether enough steps were seen to tell growth from what is filled once: queues, garbage."""
    return len({mark.step for mark in seen.memory_marks}) >= 4
