"""Inspect: apply the rules to a captured run."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator

from sandtable.check.accumulation import missing_no_sync
from sandtable.check.balance import slow_link, slow_stage
from sandtable.check.cache import empty_cache_in_loop, fragmentation
from sandtable.check.cards import (
    all_ranks_on_one_device,
    checkpoint_on_one_card,
    memory_on_another_card,
    wrong_device_ids,
)
from sandtable.check.checkpoints import checkpoint_read_too_early, checkpoint_written_by_all
from sandtable.check.clipping import (
    clip_before_unscale,
    clip_by_local_norm,
    clip_per_micro_batch,
    clip_without_effect,
)
from sandtable.check.data_parts import overlapping_samples, split_differs
from sandtable.check.decisions import unshared_decision
from sandtable.check.epochs import epoch_order, sampler_shards
from sandtable.check.evaluation import metric_not_shared, padded_evaluation
from sandtable.check.every_step import (
    barrier_in_loop,
    checkpoint_in_loop,
    needless_broadcast,
    weights_gathered_in_loop,
)
from sandtable.check.gathers import gather_without_gradient
from sandtable.check.gradient_use import gradients_discarded, missing_zero_grad
from sandtable.check.growth import memory_grows
from sandtable.check.held_parameters import parameters_not_optimized, parameters_without_gradient, stale_parameters
from sandtable.check.host_memory import host_copies
from sandtable.check.host_reads import host_copy_in_loop, host_read_in_loop
from sandtable.check.incomplete import not_captured, unsure_classes
from sandtable.check.input import input_bound
from sandtable.check.loaded_states import nothing_loaded
from sandtable.check.loader_workers import ranks_draw_alike, workers_draw_alike, workers_repeat_samples
from sandtable.check.loss_division import accumulation_not_averaged
from sandtable.check.loss_scaling import loss_not_scaled
from sandtable.check.meetings import MEETING_RULES
from sandtable.check.micro_batches import micro_batches_miscounted, step_beside_engine
from sandtable.check.overlap import tiny_collectives, unoverlapped_buckets
from sandtable.check.races import (
    memory_reused_early,
    overwritten_while_sent,
    read_before_copied,
    stream_race,
    unawaited_collective,
)
from sandtable.check.recomputation import needless_recompute
from sandtable.check.relations import shared_facts
from sandtable.check.replicas import gradients_not_reduced, replicas_diverge, replicas_start_different
from sandtable.check.replicated import replicated_differs
from sandtable.check.restored import random_state_shared, state_not_restored
from sandtable.check.scaling import infinities_of_own_shards, scaled_update
from sandtable.check.schedules import scheduler_before_optimizer, scheduler_too_fast
from sandtable.check.statistics import batch_norm_not_shared, conversion_lost, small_batch_norm, unequal_targets
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
from sandtable.check.wrapper_passes import forward_around_wrapper, no_sync_around_backward, synchronization_lost
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity, worst_first
from sandtable.trace import Trace

__all__ = ["ABOUT_FIGURES", "NO_TIME", "RAISE_VARIABLE", "RULES", "RULE_FAILED", "Rule", "inspect"]

Rule = Callable[[Trace, Timeline | None], Iterable[Finding]]

RULES: dict[str, Rule] = {
    "accumulation-not-averaged": accumulation_not_averaged,
    "all-ranks-on-one-device": all_ranks_on_one_device,
    "averaged-twice": averaged_twice,
    "barrier-in-loop": barrier_in_loop,
    "batch-norm-not-shared": batch_norm_not_shared,
    "checkpoint-in-loop": checkpoint_in_loop,
    "checkpoint-on-one-card": checkpoint_on_one_card,
    "checkpoint-read-too-early": checkpoint_read_too_early,
    "checkpoint-written-by-all": checkpoint_written_by_all,
    "clip-before-unscale": clip_before_unscale,
    "clip-by-local-norm": clip_by_local_norm,
    "clip-per-micro-batch": clip_per_micro_batch,
    "clip-without-effect": clip_without_effect,
    "conversion-lost": conversion_lost,
    "empty-cache-in-loop": empty_cache_in_loop,
    "epoch-order": epoch_order,
    "fewer-steps": fewer_steps,
    "forward-around-wrapper": forward_around_wrapper,
    "fragmentation": fragmentation,
    "gather-without-gradient": gather_without_gradient,
    "gradients-discarded": gradients_discarded,
    "gradients-not-reduced": gradients_not_reduced,
    "host-copies": host_copies,
    "host-copy-in-loop": host_copy_in_loop,
    "host-read-in-loop": host_read_in_loop,
    "identical-shards": identical_shards,
    "infinities-of-own-shards": infinities_of_own_shards,
    "input-bound": input_bound,
    "loss-not-scaled": loss_not_scaled,
    "memory-grows": memory_grows,
    "memory-on-another-card": memory_on_another_card,
    "memory-reused-early": memory_reused_early,
    "metric-not-shared": metric_not_shared,
    "micro-batches-miscounted": micro_batches_miscounted,
    "missing-no-sync": missing_no_sync,
    "missing-zero-grad": missing_zero_grad,
    "needless-broadcast": needless_broadcast,
    "needless-find-unused-parameters": needless_find_unused_parameters,
    "needless-recompute": needless_recompute,
    "no-gpu-work": no_gpu_work,
    "no-steps": no_steps,
    "no-sync-around-backward": no_sync_around_backward,
    "nothing-loaded": nothing_loaded,
    "overlapping-samples": overlapping_samples,
    "overwritten-while-sent": overwritten_while_sent,
    "padded-evaluation": padded_evaluation,
    "parameters-not-optimized": parameters_not_optimized,
    "random-state-shared": random_state_shared,
    "parameters-without-gradient": parameters_without_gradient,
    "ranks-draw-alike": ranks_draw_alike,
    "ranks-not-captured": not_captured,
    "read-before-copied": read_before_copied,
    "reduced-twice": reduced_twice,
    "replicas-diverge": replicas_diverge,
    "replicas-start-different": replicas_start_different,
    "replicated-differs": replicated_differs,
    "same-samples": same_samples,
    "sampler-shards": sampler_shards,
    "scaled-update": scaled_update,
    "scheduler-before-optimizer": scheduler_before_optimizer,
    "scheduler-too-fast": scheduler_too_fast,
    "slow-link": slow_link,
    "slow-stage": slow_stage,
    "small-batch-norm": small_batch_norm,
    "split-differs": split_differs,
    "stale-parameters": stale_parameters,
    "state-not-restored": state_not_restored,
    "step-beside-engine": step_beside_engine,
    "stream-race": stream_race,
    "summed-not-averaged": summed_not_averaged,
    "synchronization-lost": synchronization_lost,
    "tied-weights-drift": tied_weights_drift,
    "tiny-collectives": tiny_collectives,
    "unawaited-collective": unawaited_collective,
    "unequal-steps": unequal_steps,
    "unequal-targets": unequal_targets,
    "unoverlapped-buckets": unoverlapped_buckets,
    "unshared-decision": unshared_decision,
    "unsure-classes": unsure_classes,
    "weights-gathered-in-loop": weights_gathered_in_loop,
    "workers-draw-alike": workers_draw_alike,
    "workers-repeat-samples": workers_repeat_samples,
    "wrong-device-ids": wrong_device_ids,
    **MEETING_RULES,
}

ABOUT_FIGURES = frozenset(
    {"fewer-steps", "no-gpu-work", "no-steps", "ranks-not-captured", "unequal-steps", "unsure-classes"}
)
"""Rules about how far the figures can be trusted: a run that failed has none, and one that is not checked still has."""

NO_TIME = frozenset({"no-gpu-work", "no-steps"})
"""Rules that say why a script that ended well has no step time."""

RULE_FAILED = "rule-failed"

RAISE_VARIABLE = "SANDTABLE_RAISE_IN_RULES"
"""With this variable in the environment, as in the tests, the exception of a rule is raised."""


def inspect(trace: Trace, timeline: Timeline | None, *, rules: Collection[str] | None = None) -> tuple[Finding, ...]:
    """Return what the rules find, worst first; by default all rules are applied.

    `timeline` is None if the time of the run could not be computed, and the trace of a failed run ends where it failed.
    A rule that raises an exception is a note: the other rules and the figures do not depend on it.
    """
    names = [name for name in RULES if rules is None or name in rules]
    with shared_facts():
        return worst_first(finding for name in names for finding in _apply(name, trace, timeline))


def _apply(name: str, trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    try:
        yield from RULES[name](trace, timeline)
    except Exception as error:
        if os.environ.get(RAISE_VARIABLE):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"
        yield Finding(
            rule=RULE_FAILED,
            severity=Severity.NOTE,
            message=f"the rule {name} could not be applied: {what}",
            ranks=(),
            remedy=f"please report this as a bug; --ignore {RULE_FAILED} silences it",
        )
