"""Inspect: apply every rule to a captured run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sandtable.check.incomplete import not_captured, unsure_classes
from sandtable.check.races import memory_reused_early, overwritten_while_sent, stream_race, unawaited_collective
from sandtable.check.replicas import gradients_not_reduced, replicas_diverge, replicas_start_different
from sandtable.check.steps import fewer_steps, no_gpu_work, no_steps, unequal_steps
from sandtable.check.sums import (
    averaged_twice,
    identical_shards,
    reduced_twice,
    same_samples,
    summed_not_averaged,
)
from sandtable.check.tied_weights import tied_weights_drift
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import Trace

__all__ = ["RULES", "Rule", "inspect"]

Rule = Callable[[Trace, Timeline | None], Iterable[Finding]]

RULES: dict[str, Rule] = {
    "averaged-twice": averaged_twice,
    "fewer-steps": fewer_steps,
    "gradients-not-reduced": gradients_not_reduced,
    "identical-shards": identical_shards,
    "memory-reused-early": memory_reused_early,
    "overwritten-while-sent": overwritten_while_sent,
    "no-gpu-work": no_gpu_work,
    "no-steps": no_steps,
    "ranks-not-captured": not_captured,
    "reduced-twice": reduced_twice,
    "replicas-diverge": replicas_diverge,
    "replicas-start-different": replicas_start_different,
    "same-samples": same_samples,
    "stream-race": stream_race,
    "unawaited-collective": unawaited_collective,
    "summed-not-averaged": summed_not_averaged,
    "tied-weights-drift": tied_weights_drift,
    "unequal-steps": unequal_steps,
    "unsure-classes": unsure_classes,
}


def inspect(trace: Trace, timeline: Timeline | None) -> tuple[Finding, ...]:
    """Return what the rules find, worst first; `timeline` is None if the time of the run could not be computed."""
    findings = [finding for rule in RULES.values() for finding in rule(trace, timeline)]
    return tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity)))
