"""Inspect: apply every rule to a captured run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sandtable.check.accumulation import missing_no_sync
from sandtable.check.balance import slow_link, slow_stage
from sandtable.check.cache import empty_cache_in_loop, fragmentation
from sandtable.check.cards import all_ranks_on_one_device, checkpoint_on_one_card, memory_on_another_card
from sandtable.check.growth import memory_grows
from sandtable.check.host_memory import host_copies
from sandtable.check.host_reads import host_read_in_loop
from sandtable.check.incomplete import not_captured, unsure_classes
from sandtable.check.input import input_bound
from sandtable.check.overlap import tiny_collectives, unoverlapped_buckets
from sandtable.check.races import memory_reused_early, overwritten_while_sent, stream_race, unawaited_collective
from sandtable.check.recomputation import needless_recompute
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
from sandtable.check.unused import needless_find_unused_parameters
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import Trace

__all__ = ["RULES", "Rule", "inspect"]

Rule = Callable[[Trace, Timeline | None], Iterable[Finding]]

RULES: dict[str, Rule] = {
    "all-ranks-on-one-device": all_ranks_on_one_device,
    "averaged-twice": averaged_twice,
    "checkpoint-on-one-card": checkpoint_on_one_card,
    "empty-cache-in-loop": empty_cache_in_loop,
    "fewer-steps": fewer_steps,
    "fragmentation": fragmentation,
    "gradients-not-reduced": gradients_not_reduced,
    "host-copies": host_copies,
    "host-read-in-loop": host_read_in_loop,
    "identical-shards": identical_shards,
    "input-bound": input_bound,
    "memory-grows": memory_grows,
    "memory-on-another-card": memory_on_another_card,
    "memory-reused-early": memory_reused_early,
    "missing-no-sync": missing_no_sync,
    "needless-find-unused-parameters": needless_find_unused_parameters,
    "needless-recompute": needless_recompute,
    "no-gpu-work": no_gpu_work,
    "no-steps": no_steps,
    "overwritten-while-sent": overwritten_while_sent,
    "ranks-not-captured": not_captured,
    "reduced-twice": reduced_twice,
    "replicas-diverge": replicas_diverge,
    "replicas-start-different": replicas_start_different,
    "same-samples": same_samples,
    "slow-link": slow_link,
    "slow-stage": slow_stage,
    "stream-race": stream_race,
    "summed-not-averaged": summed_not_averaged,
    "tied-weights-drift": tied_weights_drift,
    "tiny-collectives": tiny_collectives,
    "unawaited-collective": unawaited_collective,
    "unequal-steps": unequal_steps,
    "unoverlapped-buckets": unoverlapped_buckets,
    "unsure-classes": unsure_classes,
}


def inspect(trace: Trace, timeline: Timeline | None) -> tuple[Finding, ...]:
    """Return what the rules find, worst first; `timeline` is None if the time of the run could not be computed."""
    findings = [finding for rule in RULES.values() for finding in rule(trace, timeline)]
    return tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity)))
