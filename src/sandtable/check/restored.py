"""Restored states: a job that goes on from its checkpoint needs all of it, and each rank its own random state."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.check.relations import at_line, data_parallel_groups
from sandtable.check.sightings import Sighting, evidence_of, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Observations, ScriptEvent, Trace

__all__ = ["random_state_shared", "state_not_restored"]

_STEPS = {"optimizer": EventKind.OPTIMIZER_STEP, "scheduler": EventKind.SCHEDULER_STEP}


def state_not_restored(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report jobs that go on from their own checkpoint without the state of the optimizer or the scheduler in it."""
    saved = {event.facts["path"] for seen in trace.observations.values() for event in seen.of_kind(EventKind.SAVE)}

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for loaded in observed.of_kind(EventKind.LOADED):
            for what in loaded.facts["holds"] if loaded.facts["path"] in saved else ():
                if (use := _use_without(observed, loaded, what)) is not None:
                    yield (
                        Sighting(text=f"reads a checkpoint that holds the state of the {what}", place=loaded.place),
                        Sighting(text=f"steps the {what}, which has not loaded it", place=use.place),
                    )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="state-not-restored",
            severity=Severity.WARNING,
            message="a job that goes on from its checkpoint must load all states in it, but only the model gets "
            "its own back: moments and learning rates begin anew",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="call optimizer.load_state_dict and scheduler.load_state_dict with what the checkpoint holds",
        )


def random_state_shared(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report random states of one rank that all ranks of a data parallel group take over."""
    for group in data_parallel_groups(trace):
        states = {
            rank: list(trace.observations[rank].of_kind(EventKind.RANDOM_STATE))
            for rank in group
            if rank in trace.observations
        }
        for together in zip(*states.values(), strict=False):
            facts = [event.facts for event in together]
            were_own = len({fact["old"] for fact in facts}) == len(facts) > 1
            if were_own and len({fact["new"] for fact in facts}) == 1:
                ranks = tuple(states)
                yield Finding(
                    rule="random-state-shared",
                    severity=Severity.WARNING,
                    message="each rank must get its own random state back, but all ranks take over that of one: from "
                    "then on they draw the same masks and samples",
                    ranks=ranks,
                    evidence=(at_line(ranks, f"calls {facts[0]['how']} with the same state", together[0].place),),
                    remedy="gather the states of all ranks into the checkpoint (all_gather_object), and let each rank "
                    "take the one of its number",
                )
                break


def _use_without(observed: Observations, loaded: ScriptEvent, what: str) -> ScriptEvent | None:
    """Return the first step after a checkpoint was read if its model was loaded, and this state was not."""
    later = observed.events[observed.events.index(loaded) :]
    restored = {event.facts["what"] for event in later if event.kind is EventKind.RESTORED}
    steps = [event for event in later if event.kind is _STEPS[what] and not event.facts.get("is_initial")]
    return steps[0] if steps and "model" in restored and what not in restored else None
