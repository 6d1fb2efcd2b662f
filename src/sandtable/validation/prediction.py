"""Prediction: what the engine says of one row. Kept, so that only what changed is worked out again."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from functools import cache as remember
from pathlib import Path

from sandtable.cluster import Cluster
from sandtable.engine import simulate
from sandtable.trace import Trace
from sandtable.validation.captures import Capture, cluster_of
from sandtable.validation.rows import Row, RowSet

__all__ = ["Prediction", "predict"]

_ROOMS = ("cluster", "engine", "trace")
"""What a prediction depends on, besides the capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The last step of a rehearsed row, and the most memory any rank had."""

    step_ns: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    breakdown_ns: dict[str, int] = field(default_factory=dict)
    """Mean over ranks; exposed communication as `communication.<axis>`."""
    basis: dict[str, float] = field(default_factory=dict)
    """Share of compute time by where its numbers come from."""


def predict(row_set: RowSet, row: Row, *, cache: Path) -> Prediction:
    """From the cache if nothing changed, else by simulating the row's capture (and capturing it, if need be)."""
    capture = Capture.of(row_set, row, cache=cache)
    cluster = cluster_of(row_set, row)
    file = cache / "predictions" / f"{capture.path.stem}-{_digest(cluster)}.json"
    if file.exists():
        return Prediction(**json.loads(file.read_text(encoding="utf-8")))
    prediction = _simulate(capture.trace(), cluster)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(prediction)), encoding="utf-8")
    partial.replace(file)
    return prediction


def _simulate(trace: Trace, cluster: Cluster) -> Prediction:
    timeline = simulate(trace, cluster)
    totals: dict[str, float] = {}
    for actor in timeline.actors:
        parts = asdict(timeline.breakdown(actor.representative))
        parts |= {f"communication.{axis}": ns for axis, ns in parts.pop("communication").items()}
        for name, ns in parts.items():
            totals[name] = totals.get(name, 0.0) + ns * len(actor.ranks) / trace.world_size
    peaks = [each.records.memory for each in trace.classes]
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
    """Equal as long as no file of the rooms changes."""
    state = hashlib.sha256()
    package = Path(__file__).parents[1]
    for room in _ROOMS:
        for file in sorted((package / room).rglob("*")):
            if file.suffix in {".py", ".cpp", ".h"}:
                state.update(file.read_bytes())
    return state.hexdigest()
