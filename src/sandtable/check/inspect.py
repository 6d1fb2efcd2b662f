"""Inspect: apply every rule to a captured run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sandtable.check.checkpoints import checkpoint_read_too_early, checkpoint_written_by_all
from sandtable.check.clipping import (
    clip_before_unscale,
    clip_by_local_norm,
    clip_per_micro_batch,
    clip_without_effect,
)
from sandtable.check.epochs import epoch_order, sampler_shards
from sandtable.check.gathers import gather_without_gradient
from sandtable.check.gradient_use import gradients_discarded, missing_zero_grad
from sandtable.check.held_parameters import parameters_not_optimized, stale_parameters
from sandtable.check.incomplete import not_captured, unsure_classes
from sandtable.check.loader_workers import ranks_draw_alike, workers_draw_alike, workers_repeat_samples
from sandtable.check.races import memory_reused_early, overwritten_while_sent, stream_race, unawaited_collective
from sandtable.check.replicas import gradients_not_reduced, replicas_diverge, replicas_start_different
from sandtable.check.schedules import scheduler_before_optimizer, scheduler_too_fast
from sandtable.check.statistics import batch_norm_not_shared, unequal_targets
from sandtable.check.steps import fewer_steps, no_gpu_work, no_steps, unequal_steps
from sandtable.check.sums import (
    averaged_twice,
    identical_shards,
    reduced_twice,
    same_samples,
    summed_not_averaged,
)
from sandtable.check.tied_weights import tied_weights_drift
from sandtable.check.wrapper_passes import forward_around_wrapper, no_sync_around_backward, synchronization_lost
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import Trace

__all__ = ["RULES", "Rule", "inspect"]

Rule = Callable[[Trace, Timeline | None], Iterable[Finding]]

RULES: dict[str, Rule] = {
    "averaged-twice": averaged_twice,
    "batch-norm-not-shared": batch_norm_not_shared,
    "checkpoint-read-too-early": checkpoint_read_too_early,
    "checkpoint-written-by-all": checkpoint_written_by_all,
    "clip-before-unscale": clip_before_unscale,
    "clip-by-local-norm": clip_by_local_norm,
    "clip-per-micro-batch": clip_per_micro_batch,
    "clip-without-effect": clip_without_effect,
    "epoch-order": epoch_order,
    "fewer-steps": fewer_steps,
    "forward-around-wrapper": forward_around_wrapper,
    "gather-without-gradient": gather_without_gradient,
    "gradients-discarded": gradients_discarded,
    "gradients-not-reduced": gradients_not_reduced,
    "identical-shards": identical_shards,
    "memory-reused-early": memory_reused_early,
    "missing-zero-grad": missing_zero_grad,
    "no-gpu-work": no_gpu_work,
    "no-steps": no_steps,
    "no-sync-around-backward": no_sync_around_backward,
    "overwritten-while-sent": overwritten_while_sent,
    "parameters-not-optimized": parameters_not_optimized,
    "ranks-draw-alike": ranks_draw_alike,
    "ranks-not-captured": not_captured,
    "reduced-twice": reduced_twice,
    "replicas-diverge": replicas_diverge,
    "replicas-start-different": replicas_start_different,
    "same-samples": same_samples,
    "sampler-shards": sampler_shards,
    "scheduler-before-optimizer": scheduler_before_optimizer,
    "scheduler-too-fast": scheduler_too_fast,
    "stale-parameters": stale_parameters,
    "stream-race": stream_race,
    "summed-not-averaged": summed_not_averaged,
    "synchronization-lost": synchronization_lost,
    "tied-weights-drift": tied_weights_drift,
    "unawaited-collective": unawaited_collective,
    "unequal-steps": unequal_steps,
    "unequal-targets": unequal_targets,
    "unsure-classes": unsure_classes,
    "workers-draw-alike": workers_draw_alike,
    "workers-repeat-samples": workers_repeat_samples,
}


def inspect(trace: Trace, timeline: Timeline | None) -> tuple[Finding, ...]:
    """Return what the rules find, worst first; `timeline` is None if the time of the run could not be computed."""
    findings = [finding for rule in RULES.values() for finding in rule(trace, timeline)]
    return tuple(sorted(findings, key=lambda finding: list(Severity).index(finding.severity)))
