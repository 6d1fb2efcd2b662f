"""Loaded states: what is read from a checkpoint must reach the model."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, Trace

__all__ = ["nothing_loaded"]


def nothing_loaded(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report calls of `load_state_dict(..., strict=False)` that found no name of the module in the state."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for event in observed.of_kind(EventKind.NOTHING_LOADED):
            facts = event.facts
            yield (
                Sighting(
                    text=f"loads {facts['num_entries']} entries, such as {facts['unexpected']}, into "
                    f"{facts['module']}, which has names such as {facts['missing']}",
                    place=event.place,
                ),
            )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="nothing-loaded",
            severity=Severity.WARNING,
            message="a state must have the names of the module that loads it, but here not a single one fits, and "
            "strict=False hides that: the module keeps the weights it had",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="save model.module.state_dict() of a wrapped model (or take the prefix off with "
            "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present), and leave strict on",
        )
