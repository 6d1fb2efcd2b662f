"""Tied weights: an embedding and an output layer that begin as one matrix on two ranks must stay one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sandtable.check.parameter_copies import Numbers, are_different
from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, Observations, Trace, WatchedParameter

__all__ = ["tied_weights_drift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    rank: int
    parameter: WatchedParameter
    values: tuple[Numbers, ...]


def tied_weights_drift(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report embeddings and output layers of two ranks that start as the same numbers and become different."""
    embeddings: list[_Matrix] = []
    outputs: list[_Matrix] = []
    for observed in trace.observations.values():
        for matrix in _matrices(observed):
            (embeddings if matrix.parameter.module == "Embedding" else outputs).append(matrix)
    seen: set[tuple[str, str]] = set()
    for one in embeddings:
        for other in outputs:
            names = one.parameter.name, other.parameter.name
            if one.rank != other.rank and names not in seen and _drift(one, other):
                seen.add(names)
                yield _finding(trace, one, other)


def _finding(trace: Trace, one: _Matrix, other: _Matrix) -> Finding:
    return Finding(
        rule="tied-weights-drift",
        severity=Severity.ERROR,
        message=f"tied weights must stay one matrix, but {one.parameter.name} on rank {one.rank} and "
        f"{other.parameter.name} on rank {other.rank} start with the same numbers and are updated differently",
        ranks=(one.rank, other.rank),
        evidence=tuple(
            at_line(
                (matrix.rank,),
                f"updates {matrix.parameter.name} with its own gradient",
                _first_update(trace.observations[matrix.rank]),
            )
            for matrix in (one, other)
        ),
        remedy="add up the gradients of both copies before each update: dist.all_reduce(weight.grad, group=...) over "
        "the ranks that hold one",
    )


def _matrices(observed: Observations) -> Iterator[_Matrix]:
    """Yield the matrices of a rank that may be an embedding or an output layer, with their identities in time."""
    rows = [row for row in observed.snapshots if row.of == "parameters"]
    values = [[Numbers(*pair) for pair in zip(row.identities, row.outlines, strict=True)] for row in rows]
    for number, parameter in enumerate(observed.parameters):
        is_matrix = len(parameter.shape) == 2 and parameter.shape[0] > parameter.shape[1]
        if is_matrix and parameter.requires_grad and not parameter.is_sharded:
            history = tuple(row[number] for row in values if number < len(row))
            if len(history) > 1 and history[0].are_known:
                yield _Matrix(rank=observed.rank, parameter=parameter, values=history)


def _drift(one: _Matrix, other: _Matrix) -> bool:
    is_tied = one.parameter.shape == other.parameter.shape and one.values[0] == other.values[0]
    after = zip(one.values[1:], other.values[1:], strict=False)
    return is_tied and any(are_different(pair) for pair in after)


def _first_update(observed: Observations) -> Line:
    return next((event.place for event in observed.of_kind(EventKind.OPTIMIZER_STEP)), Line())
