"""Runs to report on: captured and simulated once per session."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.vgpu.capturing import capture

from sandtable.cluster import load
from sandtable.engine import Timeline, simulate
from sandtable.findings import Evidence, Finding, Severity
from sandtable.report import Summary, UserInputs, summarise
from sandtable.trace import Kind, RankRecords, Records, Trace


@dataclass(frozen=True)
class Rehearsal:
    trace: Trace
    timeline: Timeline
    summary: Summary


@pytest.fixture(scope="session")
def rehearsal() -> Rehearsal:
    """A GPT on 16 GPUs of two nodes: tp 2, pp 2, dp 4, activations recomputed."""
    trace = capture("gpt_3d.py", "--tp", 2, "--pp", 2, "--recompute", "full", world_size=16)
    timeline = simulate(trace, load("dgx-a100", nodes=2))
    inputs = UserInputs(tokens_per_step=256, samples_per_step=8, usd_per_gpu_hour=2.5)
    return Rehearsal(trace, timeline, summarise(trace, timeline, timeline.cluster, inputs=inputs))


SCRIPT = str(Path(__file__).parents[2] / "examples" / "gpt_3d.py")

MISMATCH = Finding(
    rule="collective-mismatch",
    severity=Severity.ERROR,
    message="all ranks of a group must make the same calls, but ranks of mesh_tp differ at call 7",
    ranks=(0, 8),
    evidence=(
        Evidence(ranks=(0,), text="calls all_reduce of 4.00 MiB", file=SCRIPT, line=67),
        Evidence(ranks=(8,), text="calls all_gather of 8.00 MiB", file="/nowhere/train.py", line=3),
    ),
    remedy="call the same collective on every rank of the group",
)
SLOW_INPUT = Finding(
    rule="slow-input",
    severity=Severity.WARNING,
    message="the input must keep up with the device, but it does not",
    ranks=(3,),
    remedy="use more workers",
)


def stop_early(records: RankRecords, share: float) -> RankRecords:
    """The first part of a rank's records, as if it had failed there."""
    count = int(len(records.records) * share)
    columns = {name: column[:count] for name, column in records.records.columns.items()}
    num_steps = int((columns["kind"] == Kind.STEP).sum())
    return replace(records, records=Records(**columns), num_steps=num_steps, stop_reason="waits for rank 8")


def cut_trace(trace: Trace, shares: Mapping[int, float], classes: Mapping[int, list[int]]) -> Trace:
    """A trace whose ranks stop early, and some of whose ranks belong to no class."""
    records = {rank: stop_early(trace.class_of(rank).records, share) for rank, share in shares.items()}
    return Trace.assemble(
        records, classes=classes, groups=list(trace.groups), run=replace(trace.run, num_steps=0, notes=())
    )


@pytest.fixture(scope="session")
def failed(rehearsal: Rehearsal) -> Summary:
    """The same run, stopped in the middle: six ranks of the first stage were captured, and two are unknown."""
    trace = cut_trace(rehearsal.trace, {0: 0.4, 8: 0.8}, {0: [0, 1, 2, 3, 4, 5], 8: list(range(8, 16))})
    return summarise(trace, None, load("dgx-a100", nodes=2), findings=[SLOW_INPUT, MISMATCH])
