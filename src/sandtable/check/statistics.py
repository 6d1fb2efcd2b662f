"""Statistics of one rank that stand for all: means over unequal numbers of targets, and batch norm's running means."""

from __future__ import annotations

from collections.abc import Iterator

from sandtable.check.relations import at_line, data_parallel_groups, few_names
from sandtable.check.sightings import Sighting, evidence_of, is_equal_everywhere, seen_together
from sandtable.engine.timeline import Timeline
from sandtable.findings import Finding, Severity
from sandtable.trace import EventKind, Line, MeanLoss, Observations, Trace

__all__ = ["batch_norm_not_shared", "conversion_lost", "small_batch_norm", "unequal_targets"]

_FEW_BYTES = 64
_FEW_SAMPLES = 4
_DIFFERENCE = 1.02
"""How many times as many targets one rank must have as another for it to matter."""


def unequal_targets(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report losses that average over the targets of a rank, of which ranks have unequal numbers."""
    for group in data_parallel_groups(trace):
        losses = {rank: trace.observations[rank].mean_losses for rank in group if rank in trace.observations}
        if any(_shares_counts(trace.observations[rank]) for rank in losses):
            continue
        for together in zip(*losses.values(), strict=False):
            counts = [loss.num_targets for loss in together]
            if len(together) > 1 and min(counts) > 0 and max(counts) > _DIFFERENCE * min(counts):
                yield _unequal(tuple(losses), together)
                break


def batch_norm_not_shared(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Note running means of batch norm that differ between replicas, and that nothing makes equal."""
    for group in data_parallel_groups(trace):
        observed = trace.observations.get(group[0])
        wrapped = [] if observed is None else list(observed.of_kind(EventKind.WRAPPED))
        if observed is None or not wrapped or any(event.facts.get("broadcasts_buffers", True) for event in wrapped):
            continue
        for watched in observed.parameters:
            if watched.is_buffer and watched.module.startswith("BatchNorm") and watched.name.endswith("running_mean"):
                alike = is_equal_everywhere(trace, group, of="parameters", number=-1, parameter=watched.name)
                if alike is False:
                    place = wrapped[0].place
                    yield Finding(
                        rule="batch-norm-not-shared",
                        severity=Severity.NOTE,
                        message=f"{watched.name} is a mean over the samples of one rank, and DDP does not broadcast "
                        "buffers here, so each replica evaluates and is saved with statistics of its own",
                        ranks=group,
                        evidence=(at_line(group, "wraps the model", place),),
                        remedy="convert the model with torch.nn.SyncBatchNorm.convert_sync_batchnorm, leave "
                        "broadcast_buffers on, or average the buffers before evaluating and saving",
                    )
                    break


def conversion_lost(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report layers that were converted to SyncBatchNorm and are batch norms of one rank all the same."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        for event in observed.of_kind(EventKind.CONVERSION_LOST):
            place = Line(event.facts["file"], event.facts["line"])
            yield (
                Sighting(text="converts batch norms, and the model does not get the result", place=place),
                Sighting(text=f"wraps a model that still has {few_names(event.facts['names'])}", place=event.place),
            )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="conversion-lost",
            severity=Severity.WARNING,
            message="convert_sync_batchnorm returns the layer that shares its statistics, but nothing puts it into "
            "the model, so each rank still normalises by its own samples",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="convert the whole model, and wrap what comes back: "
            "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        )


def small_batch_norm(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Note batch norms that see only a few samples, those of one rank."""

    def look(observed: Observations) -> Iterator[tuple[Sighting, ...]]:
        wrapped = next(observed.of_kind(EventKind.BATCH_NORMS), None)
        loaders = [event for event in observed.of_kind(EventKind.LOADER) if event.facts.get("trains")]
        sizes = [loader.facts["batch_size"] for loader in loaders]
        if wrapped is not None and loaders and 0 < max(sizes) <= _FEW_SAMPLES:
            yield (
                Sighting(text=f"wraps a model with {few_names(wrapped.facts['names'])}", place=wrapped.place),
                Sighting(text=f"makes a loader with batches of {max(sizes)}", place=Line(*loaders[0].facts["made"])),
            )

    for ranks, sightings in seen_together(trace, look):
        yield Finding(
            rule="small-batch-norm",
            severity=Severity.NOTE,
            message="batch norm takes its means over the samples of one rank, and here these are only a few, so they "
            "are far from those of the whole batch",
            ranks=ranks,
            evidence=evidence_of(ranks, sightings),
            remedy="share the statistics between ranks, model = "
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model), before the model is wrapped; or use group norm",
        )


def _unequal(ranks: tuple[int, ...], together: tuple[MeanLoss, ...]) -> Finding:
    return Finding(
        rule="unequal-targets",
        severity=Severity.WARNING,
        message="a mean over all targets needs as many of them on each rank, but this loss averages over the targets "
        "of a rank, of which ranks have unequal numbers, and averaging gradients weighs all ranks alike",
        ranks=ranks,
        evidence=tuple(
            at_line((rank,), f"averages over {loss.num_targets:,} targets", loss.place)
            for rank, loss in zip(ranks, together, strict=True)
        ),
        remedy="add up the losses (reduction='sum'), all-reduce the number of targets, and divide by its mean per rank",
    )


def _shares_counts(observed: Observations) -> bool:
    """Return whether a few numbers are summed over ranks between the first loss's step and its backward pass."""
    first = observed.mean_losses[0].row if observed.mean_losses else 0
    wrappers = observed.of_kind(EventKind.WRAPPED, EventKind.SHARDED)
    made = max((event.row for event in wrappers if event.row < first), default=0)
    turns = [event.row for event in observed.of_kind(EventKind.BACKWARD) if event.row >= first]
    end = turns[0] if turns else first
    return any(
        call.op in ("all_reduce", "all_gather") and call.num_bytes <= _FEW_BYTES and made < call.row < end
        for call in observed.calls
    )
