"""Predict one row with the engine. Predictions are cached, so only what changed is computed again."""

import hashlib
import json
import os
from dataclasses import asdict
from functools import cache as remember
from pathlib import Path

from sandtable.cluster import Cluster, load
from sandtable.engine.timeline import Timeline
from sandtable.rehearsal.script import LaunchOptions, make_job, rehearse
from sandtable.rehearsal.store import CaptureStore
from sandtable.validation.quantities import Prediction
from sandtable.validation.rows import PublishedRow, RowSet
from sandtable.vgpu import Limits

__all__ = ["capture_path", "predict"]

_MAX_OPERATORS = 100_000_000

_ROOMS = ("cluster", "engine", "trace")
"""The code that a prediction depends on, besides the capture."""


def predict(row_set: RowSet, row: PublishedRow, *, cache: Path) -> Prediction:
    """Return the cached prediction if nothing changed; otherwise capture the row if necessary, and simulate it."""
    capture, cluster = capture_path(row_set, row, cache=cache), _cluster(row_set, row)
    file = cache / "predictions" / f"{capture.stem}-{_digest(cluster)}.json"
    if file.exists():
        return Prediction(**json.loads(file.read_text(encoding="utf-8")))
    options = _options(row_set, row, cache)
    run = rehearse(row_set.script, *row.args, cluster=cluster, steps=row_set.num_steps, options=options)
    prediction = _prediction(run.timeline)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(prediction)), encoding="utf-8")
    partial.replace(file)
    return prediction


def capture_path(row_set: RowSet, row: PublishedRow, *, cache: Path) -> Path:
    """Return the file in which the row's capture is kept, or would be."""
    options = _options(row_set, row, cache)
    job = make_job(str(row_set.script), row.args, _cluster(row_set, row), row_set.num_steps, options)
    return _store(row_set, cache).path_of(job)


def _options(row_set: RowSet, row: PublishedRow, cache: Path) -> LaunchOptions:
    """Return how to capture the row. No rank runs only to verify its class: the scripts are known to be regular."""
    return LaunchOptions(
        ranks_per_node=min(row.gpus, _cluster(row_set, row).gpus_per_node),
        max_operators=_MAX_OPERATORS,
        limits=Limits(max_samples=0),
        follow_seconds=0.0,
        few_ranks=0,
        store=_store(row_set, cache),
    )


def _store(row_set: RowSet, cache: Path) -> CaptureStore:
    """Return the store of captures; the scripts import models from examples/, too."""
    examples = row_set.script.resolve().parents[2] / "examples"
    return CaptureStore(cache / "captures", import_roots=(examples,))


def _cluster(row_set: RowSet, row: PublishedRow) -> Cluster:
    """Return as many nodes of the set's machine as the row needs."""
    return _load(row_set.cluster, -(-row.gpus // _load(row_set.cluster, 1).gpus_per_node))


@remember
def _load(name: str, nodes: int) -> Cluster:
    return load(name, nodes=nodes)


def _prediction(timeline: Timeline) -> Prediction:
    trace = timeline.trace
    totals: dict[str, float] = {}
    for actor in timeline.actors:
        parts = asdict(timeline.breakdown(actor.representative))
        parts |= {f"communication.{axis}": ns for axis, ns in parts.pop("communication").items()}
        for name, ns in parts.items():
            totals[name] = totals.get(name, 0.0) + ns * len(actor.ranks) / trace.world_size
    peaks = [rank_class.records.memory for rank_class in trace.classes]
    return Prediction(
        step_ns=timeline.step_ns,
        peak_allocated_bytes=max(peak.allocated_bytes for peak in peaks),
        peak_reserved_bytes=max(peak.reserved_bytes for peak in peaks),
        breakdown_ns={name: round(ns) for name, ns in totals.items() if ns},
        basis=timeline.basis,
    )


def _digest(cluster: Cluster) -> str:
    return hashlib.sha256(f"{cluster!r}{_code()}".encode()).hexdigest()[:16]


@remember
def _code() -> str:
    """Hash the files of the rooms."""
    state = hashlib.sha256()
    package = Path(__file__).parents[1]
    for room in _ROOMS:
        for file in sorted((package / room).rglob("*")):
            if file.suffix in {".py", ".cpp", ".h"}:
                state.update(file.read_bytes())
    return state.hexdigest()
