"""Replicated tensors: what ranks of a mesh's dim declare to be the same must be the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, InputCopy, ScriptEvent, Trace

__all__ = ["replicated_differs"]

_FEW_BYTES = 64


def replicated_differs(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report tensors that DTensor takes as replicated, and that ranks have computed from different numbers."""
    declared: dict[tuple[int, ...], dict[int, list[ScriptEvent]]] = defaultdict(dict)
    for rank, observed in sorted(trace.observations.items()):
        for event in observed.of_kind(EventKind.REPLICATED):
            declared[tuple(event.facts["group"])].setdefault(rank, []).append(event)
    for by_rank in declared.values():
        for together in zip(*by_rank.values(), strict=False):
            if len(together) > 1 and _are_different(together):
                ranks = tuple(by_rank)
                yield _finding(trace, ranks, together)
                break
        else:
            continue
        break


def _are_different(together: tuple[ScriptEvent, ...]) -> bool:
    """Return whether these are known to be different numbers, declared on one line."""
    is_one = len({(event.place, tuple(event.facts["shape"])) for event in together}) == 1
    is_known = all(event.facts["identity"] for event in together)
    return is_one and is_known and len({event.facts["outline"] for event in together}) > 1


def _finding(trace: Trace, ranks: tuple[int, ...], together: tuple[ScriptEvent, ...]) -> Finding:
    copies = [[copy for copy in trace.observations[rank].host_copies if copy.num_bytes > _FEW_BYTES] for rank in ranks]
    differing = next((row for row in zip(*copies, strict=False) if _are_others(row)), None)
    evidence = [at_line(ranks, "gives DTensor a tensor as the same on all of them", together[0].place)]
    if differing is not None:
        evidence.insert(0, at_line(ranks, "gets numbers of its own from the host", differing[0].place))
    loaders = [event for event in trace.observations[ranks[0]].of_kind(EventKind.LOADER) if event.facts.get("trains")]
    evidence += [at_line(ranks, "takes batches", event.place) for event in loaders[:1]]
    return Finding(
        rule="replicated-differs",
        severity=Severity.ERROR,
        message="ranks of a tensor-parallel group must compute with the same activations, but what they declare to be "
        "replicated differs between them: they put together parts of different samples",
        ranks=ranks,
        evidence=tuple(evidence),
        remedy="let the ranks of a tensor-parallel group read the same samples, with a sampler that has num_replicas "
        "and rank of the data parallel mesh, and draw the same random numbers where they hold the same activations",
    )


def _are_others(row: tuple[InputCopy, ...]) -> bool:
    return len({copy.identity for copy in row}) > 1 and len({(copy.place, copy.num_bytes) for copy in row}) == 1
