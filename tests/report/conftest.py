"""Runs to report on: captured once a session, each with a timeline made by hand."""

from dataclasses import dataclass

import pytest
from tests.report.fakes import FakeTimeline
from tests.vgpu.capturing import capture

from sandtable.report.summary import Asked, RunSummary, summarise_run
from sandtable.trace import Trace


@dataclass(frozen=True)
class Rehearsal:
    trace: Trace
    timeline: FakeTimeline
    summary: RunSummary


@pytest.fixture(scope="session")
def rehearsal() -> Rehearsal:
    """A GPT on 16 GPUs of two nodes: tp 2, pp 2, dp 4, activations recomputed."""
    trace = capture("gpt_3d.py", "--tp", 2, "--pp", 2, "--recompute", "full", world_size=16)
    timeline = FakeTimeline(trace)
    asked = Asked(tokens_per_step=256, samples_per_step=8, usd_per_gpu_hour=2.5)
    return Rehearsal(trace, timeline, summarise_run(trace, timeline, asked))
