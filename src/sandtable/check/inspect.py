"""Inspect: apply every rule to a captured run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sandtable.check.incomplete import not_captured, unsure_classes
from sandtable.check.meetings import MEETING_RULES
from sandtable.check.steps import fewer_steps, no_gpu_work, no_steps, unequal_steps
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import Trace

__all__ = ["RULES", "Rule", "inspect"]

Rule = Callable[[Trace, Timeline | None], Iterable[Finding]]

RULES: dict[str, Rule] = {
    "fewer-steps": fewer_steps,
    "no-gpu-work": no_gpu_work,
    "no-steps": no_steps,
    "ranks-not-captured": not_captured,
    "unequal-steps": unequal_steps,
    "unsure-classes": unsure_classes,
    **MEETING_RULES,
}


def inspect(trace: Trace, timeline: Timeline | None) -> tuple[Finding, ...]:
    """Return what the rules find, worst first; `timeline` is None if the time of the run could not be computed."""
    findings = [finding for rule in RULES.values() for finding in rule(trace, timeline)]
    return tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity)))
